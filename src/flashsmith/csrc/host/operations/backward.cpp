// The operations of a backward kernel.
#include <tvm/ffi/any.h>
#include <tvm/ffi/error.h>

#include <memory>

#include "host/args/call.h"
#include "host/backward_kernel.h"
#include "host/check/check.h"
#include "host/last_accepted.h"
#include "host/launch.h"
#include "host/looks.h"
#include "host/operations/facts.h"
#include "host/workspace.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;

Call call_of(PackedArgs arguments) { return Call("backward", kBackwardArguments, arguments); }

BackwardTensors tensors_of(const Call &call) {
  return BackwardTensors(tensors_of<kBackwardArguments.size()>(call));
}

// Checks that no gradient was requested that the variant does not have.
void check_asked_for(const BackwardKernel &kernel, const BackwardTensors &tensors) {
  const auto check = [&](const char *name, const void *given, bool has, const char *needed) {
    if (!given || has) return;
    TVM_FFI_THROW(ValueError) << name << " was passed, but " << kernel.name << " has no " << needed;
  };
  check("dsinks", tensors.dsinks(), kernel.variant.sinks, "sinks");
  check("dbias", tensors.dbias(), kernel.variant.bias, "bias");
}

ForwardProblem check_shapes(const BackwardKernel &kernel, const BackwardTensors &tensors,
                            const Numbers &numbers) {
  const ForwardProblem problem = check_problem(kernel, tensors.all(), tensors.forward(), numbers);
  check_asked_for(kernel, tensors);
  return problem;
}

Facts facts_of_call(const BackwardKernel &kernel, const Call &call) {
  const BackwardTensors tensors = tensors_of(call);
  const int num_sms = num_sms_of(kernel.kind, tensors.forward().q().device());
  const ForwardProblem problem = check_shapes(kernel, tensors, call.numbers());
  return facts_of(kernel.plan(tensors, problem, num_sms));
}

// A call that the kernel has accepted: the next call with the same looks is not checked again.
class AcceptedBackward {
  const BackwardKernel &kernel_;
  Looks looks_;
  int64_t max_seqlen_q_, max_seqlen_k_;  // the only numbers that a plan depends on
  ForwardProblem problem_;
  Plan plan_;

 public:
  AcceptedBackward(const BackwardKernel &kernel, const BackwardTensors &tensors,
                   const Numbers &numbers)
      : kernel_(kernel),
        looks_(tensors.all()),
        max_seqlen_q_(numbers.max_seqlen_q),
        max_seqlen_k_(numbers.max_seqlen_k),
        problem_(check_shapes(kernel, tensors, numbers)) {
    check_memory(tensors.all());
    kernel.check_layout(tensors);
    plan_ = kernel.plan(tensors, problem_, num_sms_of(kernel.kind, tensors.forward().q().device()));
    if (!plan_.launches.empty()) prepare(kernel.gpus, plan_, tensors.forward().q().device());
  }

  bool fits(const BackwardTensors &tensors, const Numbers &numbers) const {
    return numbers.max_seqlen_q == max_seqlen_q_ && numbers.max_seqlen_k == max_seqlen_k_ &&
           looks_.fit(tensors.all());
  }

  // Computes dq, dk and dv of a loss with gradient do with respect to o, and dlse with respect to
  // lse; and dsinks and dbias, if they are not None. The workspace is allocated if none was passed.
  // Returns milliseconds if `timed`.
  double run(BackwardTensors tensors, const Numbers &numbers, bool timed) const {
    if (plan_.launches.empty()) return 0;
    const OwnWorkspace own(plan_, tensors.workspace(), tensors.forward().q().device());
    tensors.set_workspace(own.get());
    check_workspace(tensors.all(), plan_);
    check_apart(tensors.all());
    check_numbers(kernel_, numbers);
    check_key_ranges(tensors.forward(), numbers);
    return launch(plan_, kernel_.arguments(plan_, tensors, problem_, numbers), tensors.all(),
                  timed);
  }
};

double backward(const BackwardKernel &kernel, bool timed, bool are_new, const Call &call) {
  BackwardTensors tensors = tensors_of(call);
  tensors.set_new(are_new);
  return AcceptedBackward(kernel, tensors, call.numbers()).run(tensors, call.numbers(), timed);
}

// Returns a function that makes calls: it takes the arguments of `backward`, except whether to
// measure.
Function bind(const BackwardKernel &kernel) {
  const auto last = std::make_shared<LastAccepted<AcceptedBackward>>();
  return Function::FromPacked([&kernel, last](PackedArgs arguments, Any *) {
    const Call call = call_of(arguments.Slice(1));
    BackwardTensors tensors = tensors_of(call);
    tensors.set_new(arguments[0].cast<bool>());
    last->like(kernel, tensors, call.numbers())->run(tensors, call.numbers(), false);
  });
}

}  // namespace

Operations BackwardKernel::operations() const {
  return {
      {"plan", Function::FromPacked([this](PackedArgs arguments, Any *result) {
         *result = facts_of_call(*this, call_of(arguments));
       })},
      {"backward", Function::FromPacked([this](PackedArgs arguments, Any *result) {
         const bool timed = arguments[0].cast<bool>(), are_new = arguments[1].cast<bool>();
         *result = backward(*this, timed, are_new, call_of(arguments.Slice(2)));
       })},
      {"bind", Function::FromPacked([this](PackedArgs, Any *result) { *result = bind(*this); })}};
}

}  // namespace flashsmith
