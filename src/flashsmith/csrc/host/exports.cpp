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
#include <vector>

#include "host/forward.h"
#include "host/registry.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Map;
using tvm::ffi::Optional;
using tvm::ffi::String;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

using OptionalTensor = Optional<TensorView>;

using OptionalTensors = Optional<Array<Tensor>>;

const TensorView *given(const OptionalTensor &t) { return t.has_value() ? &*t : nullptr; }

// What a user's functions read.
class ModTensors {
  std::vector<TensorView> views_;

 public:
  explicit ModTensors(const OptionalTensors &tensors) {
    if (!tensors.has_value()) return;
    if (tensors->size() > kMostModBuffers) {
      TVM_FFI_THROW(ValueError) << "mod_tensors has " << tensors->size() << " tensors; at most "
                                << kMostModBuffers << " can be read";
    }
    for (const Tensor &t : *tensors) views_.emplace_back(t);
  }

  void add_to(ForwardTensors::Given &given) const {
    for (size_t k = 0; k < views_.size(); k++) given[kFirstModTensor + k] = &views_[k];
  }
};

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

// The tensors that forward() takes, as the table has them: what each is called, its shape, its
// dtype (that of the configuration, float32, int32, or any), what a kernel does with it, and
// whether it may be None.
Array<Map<String, String>> forward_arguments() {
  constexpr const char *kElements[] = {"of_config", "float32", "int32", "any"};
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

// What a call on such tensors does: its launches, and its workspace. The arguments from lse on are
// those of forward().
Map<String, Any> plan(int64_t handle, TensorView q, TensorView k, TensorView v, TensorView o,
                      OptionalTensor lse, OptionalTensor alibi_slopes, OptionalTensor bias,
                      OptionalTensor sinks, OptionalTensor cu_seqlens_q,
                      OptionalTensor cu_seqlens_k, OptionalTensor seqused_q,
                      OptionalTensor seqused_k, double, int64_t, int64_t, bool,
                      int64_t max_seqlen_q, OptionalTensors mod_tensors, int64_t,
                      OptionalTensor key_ranges, int64_t) {
  const ModTensors read_by_mods(mod_tensors);
  ForwardTensors::Given all{&q,
                            &k,
                            &v,
                            &o,
                            given(lse),
                            given(alibi_slopes),
                            given(bias),
                            given(sinks),
                            given(cu_seqlens_q),
                            given(cu_seqlens_k),
                            given(seqused_q),
                            given(seqused_k),
                            given(key_ranges)};
  read_by_mods.add_to(all);
  const ForwardTensors tensors(all);
  const ForwardNumbers numbers{.max_seqlen_q = max_seqlen_q};
  const Plan plan = plan_forward(kernel_of(handle), tensors, numbers);
  Array<Map<String, int64_t>> launches;
  for (const Launch &launch : plan.launches) launches.push_back(facts_of(launch));
  return {{"launches", launches},
          {"workspace_bytes", plan.workspace_bytes},
          {"zeroed_bytes", plan.zeroed_bytes}};
}

// o = softmax(q k^T * softmax_scale) v, with what the kernel's variant does besides; and lse if it
// is not None. Returns milliseconds if `timed`.
double forward(int64_t handle, TensorView q, TensorView k, TensorView v, TensorView o,
               OptionalTensor lse, OptionalTensor workspace, double softmax_scale, bool timed,
               OptionalTensor alibi_slopes, OptionalTensor bias, OptionalTensor sinks,
               OptionalTensor cu_seqlens_q, OptionalTensor cu_seqlens_k, OptionalTensor seqused_q,
               OptionalTensor seqused_k, double softcap, int64_t window_left, int64_t window_right,
               bool top_left, int64_t max_seqlen_q, OptionalTensors mod_tensors, int64_t score,
               OptionalTensor key_ranges, int64_t rows_per_range) {
  const ModTensors read_by_mods(mod_tensors);
  ForwardTensors::Given all{&q,
                            &k,
                            &v,
                            &o,
                            given(lse),
                            given(alibi_slopes),
                            given(bias),
                            given(sinks),
                            given(cu_seqlens_q),
                            given(cu_seqlens_k),
                            given(seqused_q),
                            given(seqused_k),
                            given(key_ranges)};
  all[kWorkspace] = given(workspace);
  read_by_mods.add_to(all);
  const ForwardTensors tensors(all);
  const ForwardNumbers numbers{.softmax_scale = softmax_scale,
                               .softcap = softcap,
                               .window_left = window_left,
                               .window_right = window_right,
                               .top_left = top_left,
                               .max_seqlen_q = max_seqlen_q,
                               .score = score,
                               .rows_per_range = rows_per_range};
  return run_forward(handle, tensors, numbers, timed);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernels, kernels);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward_arguments, forward_arguments);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(plan, plan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, forward);

}  // namespace flashsmith
