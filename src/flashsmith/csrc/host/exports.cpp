// The functions a library exports through tvm-ffi. flashsmith.runtime is their caller.
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <string>

#include "host/accepted_forward.h"
#include "host/args/forward_call.h"
#include "host/check/check.h"
#include "host/registry.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::Map;
using tvm::ffi::PackedArgs;
using tvm::ffi::String;

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

// What a call does: its launches, and its workspace.
Map<String, Any> plan(const ForwardKernel &kernel, const ForwardCall &call) {
  const ForwardTensors tensors = call.tensors();
  const ForwardProblem problem = check_problem(kernel, tensors, call.numbers());
  const Plan plan = kernel.plan(problem, multiprocessors_of(tensors.q().device()));
  Array<Map<String, int64_t>> launches;
  for (const Launch &launch : plan.launches) launches.push_back(facts_of(launch));
  return {{"launches", launches},
          {"workspace_bytes", plan.workspace_bytes},
          {"zeroed_bytes", plan.zeroed_bytes}};
}

// o = softmax(q k^T * softmax_scale) v, with what the kernel's variant does besides; and lse if it
// is not None. Returns milliseconds if `timed`.
double forward(const ForwardKernel &kernel, bool timed, const ForwardCall &call) {
  const ForwardTensors tensors = call.tensors();
  const AcceptedForward accepted(kernel, tensors, call.numbers());
  return accepted.run(tensors, call.numbers(), timed);
}

// As `forward`. Returns a function that does it again, for tensors that look the same; for others,
// or where the workspace is not to be had, it does nothing and returns false.
Function repeatable(const ForwardKernel &kernel, const ForwardCall &call) {
  const ForwardTensors tensors = call.tensors();
  const AcceptedForward accepted(kernel, tensors, call.numbers());
  accepted.run(tensors, call.numbers(), false);
  return Function::FromPacked(
      [accepted, numbers = call.numbers()](PackedArgs arguments, Any *done) {
        const ForwardCall again(arguments, numbers);
        const ForwardTensors tensors = again.tensors();
        *done = accepted.fits(tensors, again.numbers());
        if (done->cast<bool>()) accepted.run(tensors, again.numbers(), false);
      });
}

// What can be done with the kernel of a handle. Each takes the arguments of a call (ForwardCall),
// `forward` another before them: whether to measure.
Map<String, Function> operations(int64_t handle) {
  const ForwardKernel &kernel = kernel_of(handle);
  return {{"plan", Function::FromPacked([&kernel](PackedArgs arguments, Any *result) {
             *result = plan(kernel, ForwardCall(arguments));
           })},
          {"forward", Function::FromPacked([&kernel](PackedArgs arguments, Any *result) {
             *result = forward(kernel, arguments[0].cast<bool>(), ForwardCall(arguments.Slice(1)));
           })},
          {"repeatable", Function::FromPacked([&kernel](PackedArgs arguments, Any *result) {
             *result = repeatable(kernel, ForwardCall(arguments));
           })}};
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernels, kernels);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward_arguments, forward_arguments);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(operations, operations);

}  // namespace flashsmith
