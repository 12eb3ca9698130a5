// The functions a library exports through tvm-ffi. flashsmith.runtime is their caller.
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <string>

#include "host/forward.h"
#include "host/registry.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Map;
using tvm::ffi::Optional;
using tvm::ffi::String;
using tvm::ffi::TensorView;

const TensorView *given(const Optional<TensorView> &t) { return t.has_value() ? &*t : nullptr; }

// The names of the library's kernels. A name's index is the handle that the others take.
Array<String> kernels() {
  Array<String> names;
  for (const auto &kernel : registered_kernels()) names.push_back(kernel->name);
  return names;
}

Map<String, int64_t> facts_of(const Launch &launch) {
  return {{"grid_x", launch.grid.x},   {"grid_y", launch.grid.y},
          {"grid_z", launch.grid.z},   {"cluster", launch.cluster},
          {"threads", launch.threads}, {"shared_memory_bytes", launch.shared_memory_bytes}};
}

String shape_of(const Argument &argument) {
  std::string shape;
  for (int d = 0; d < argument.rank(); d++) {
    shape += (d ? ", " : "") + std::string(name_of(argument.dims[d]));
  }
  return "(" + shape + ")";
}

// The tensors that forward() takes, in its order: what each is called, its shape, its dtype (that
// of the configuration, or float32, or any), what a kernel does with it, and whether it may be
// None.
Array<Map<String, String>> forward_arguments() {
  constexpr const char *kElements[] = {"of_config", "float32", "any"};
  constexpr const char *kUses[] = {"read", "written", "scratch"};
  Array<Map<String, String>> arguments;
  for (const Argument &argument : kForwardArguments) {
    arguments.push_back({{"name", argument.name},
                         {"shape", shape_of(argument)},
                         {"element", kElements[static_cast<size_t>(argument.element)]},
                         {"use", kUses[static_cast<size_t>(argument.use)]},
                         {"optional", argument.optional ? "yes" : "no"}});
  }
  return arguments;
}

// What a call on such tensors does: its launches, and its workspace.
Map<String, Any> plan(int64_t handle, TensorView q, TensorView k, TensorView v, TensorView o,
                      Optional<TensorView> lse) {
  const Plan plan =
      plan_forward(kernel_of(handle), ForwardTensors(q, k, v, o, given(lse), nullptr));
  Array<Map<String, int64_t>> launches;
  for (const Launch &launch : plan.launches) launches.push_back(facts_of(launch));
  return {{"launches", launches},
          {"workspace_bytes", plan.workspace_bytes},
          {"zeroed_bytes", plan.zeroed_bytes}};
}

// o = softmax(q k^T * softmax_scale) v, and lse if it is not None. Returns milliseconds if `timed`.
double forward(int64_t handle, TensorView q, TensorView k, TensorView v, TensorView o,
               Optional<TensorView> lse, Optional<TensorView> workspace, double softmax_scale,
               bool timed) {
  const ForwardTensors tensors(q, k, v, o, given(lse), given(workspace));
  return run_forward(handle, tensors, {.softmax_scale = softmax_scale}, timed);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernels, kernels);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward_arguments, forward_arguments);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(plan, plan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, forward);

}  // namespace flashsmith
