// What can be done with a forward kernel.
#include <tvm/ffi/any.h>

#include "host/accepted_forward.h"
#include "host/args/call.h"
#include "host/check/check.h"
#include "host/operations/facts.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;

Call call_of(PackedArgs arguments, const Numbers &otherwise = {}) {
  return Call("forward", kForwardArguments, arguments, otherwise);
}

ForwardTensors tensors_of(const Call &call) {
  return ForwardTensors(tensors_of<kForwardArguments.size()>(call));
}

Facts facts_of_call(const ForwardKernel &kernel, const Call &call) {
  const ForwardTensors tensors = tensors_of(call);
  const ForwardProblem problem = check_problem(kernel, tensors.all(), tensors, call.numbers());
  return facts_of(kernel.plan(problem, multiprocessors_of(tensors.q().device())));
}

// o = softmax(q k^T * softmax_scale) v, with what the kernel's variant does besides; and lse if it
// is not None. Returns milliseconds if `timed`.
double forward(const ForwardKernel &kernel, bool timed, const Call &call) {
  const ForwardTensors tensors = tensors_of(call);
  const AcceptedForward accepted(kernel, tensors, call.numbers());
  return accepted.run(tensors, call.numbers(), timed);
}

// As `forward`. Returns a function that does it again, for tensors that look the same; for others,
// or where the workspace is not to be had, it does nothing and returns false.
Function repeatable(const ForwardKernel &kernel, const Call &call) {
  const ForwardTensors tensors = tensors_of(call);
  const AcceptedForward accepted(kernel, tensors, call.numbers());
  accepted.run(tensors, call.numbers(), false);
  return Function::FromPacked(
      [accepted, numbers = call.numbers()](PackedArgs arguments, Any *done) {
        const Call again = call_of(arguments, numbers);
        const ForwardTensors tensors = tensors_of(again);
        *done = accepted.fits(tensors, again.numbers());
        if (done->cast<bool>()) accepted.run(tensors, again.numbers(), false);
      });
}

}  // namespace

Operations ForwardKernel::operations() const {
  return {{"plan", Function::FromPacked([this](PackedArgs arguments, Any *result) {
             *result = facts_of_call(*this, call_of(arguments));
           })},
          {"forward", Function::FromPacked([this](PackedArgs arguments, Any *result) {
             *result = forward(*this, arguments[0].cast<bool>(), call_of(arguments.Slice(1)));
           })},
          {"repeatable", Function::FromPacked([this](PackedArgs arguments, Any *result) {
             *result = repeatable(*this, call_of(arguments));
           })}};
}

}  // namespace flashsmith
