// The operations of a forward kernel.
#include <tvm/ffi/any.h>

#include <memory>

#include "host/accepted_forward.h"
#include "host/args/call.h"
#include "host/check/check.h"
#include "host/last_accepted.h"
#include "host/launch.h"
#include "host/operations/facts.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;

Call call_of(PackedArgs arguments) { return Call("forward", kForwardArguments, arguments); }

ForwardTensors tensors_of(const Call &call) {
  return ForwardTensors(tensors_of<kForwardArguments.size()>(call));
}

Facts facts_of_call(const ForwardKernel &kernel, const Call &call) {
  const ForwardTensors tensors = tensors_of(call);
  const ForwardProblem problem = check_problem(kernel, tensors.all(), tensors, call.numbers());
  return facts_of(kernel.plan(problem, num_sms_of(kernel.kind, tensors.q().device())));
}

// Computes o = softmax(q k^T * softmax_scale) v, with the features of the kernel's variant; and lse
// if it is not None. Returns milliseconds if `timed`.
double forward(const ForwardKernel &kernel, bool timed, const Call &call) {
  const ForwardTensors tensors = tensors_of(call);
  const AcceptedForward accepted(kernel, tensors, call.numbers());
  return accepted.run(tensors, call.numbers(), timed);
}

// Returns a function that makes a call and returns true, or returns false if zeros are missing. It
// takes the stream that the workspace is kept for (host/workspace.h), then the arguments of
// `forward`.
Function bind(const ForwardKernel &kernel) {
  const auto last = std::make_shared<LastAccepted<AcceptedForward>>();
  return Function::FromPacked([&kernel, last](PackedArgs arguments, Any *done) {
    const Call call = call_of(arguments.Slice(1));
    const auto stream = arguments[0].cast<int64_t>();
    ForwardTensors tensors = tensors_of(call);
    const auto accepted = last->like(kernel, tensors, call.numbers());
    *done = accepted->has_zeros(tensors, stream);
    if (!done->cast<bool>()) return;
    if (tensors.workspace()) accepted->leave_out_workspace(tensors, stream);
    accepted->run(tensors, call.numbers(), false);
  });
}

}  // namespace

Operations ForwardKernel::operations() const {
  return {
      {"plan", Function::FromPacked([this](PackedArgs arguments, Any *result) {
         *result = facts_of_call(*this, call_of(arguments));
       })},
      {"forward", Function::FromPacked([this](PackedArgs arguments, Any *result) {
         *result = forward(*this, arguments[0].cast<bool>(), call_of(arguments.Slice(1)));
       })},
      {"bind", Function::FromPacked([this](PackedArgs, Any *result) { *result = bind(*this); })}};
}

}  // namespace flashsmith
