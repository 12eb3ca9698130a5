#include "host/accepted_forward.h"

#include "host/check/check.h"
#include "host/launch.h"
#include "host/workspace.h"

namespace flashsmith {

AcceptedForward::AcceptedForward(const ForwardKernel &kernel, const ForwardTensors &tensors,
                                 const Numbers &numbers)
    : kernel_(kernel),
      looks_(tensors.all()),
      max_seqlen_q_(numbers.max_seqlen_q),
      max_seqlen_k_(numbers.max_seqlen_k),
      problem_(check_problem(kernel, tensors.all(), tensors, numbers)) {
  if (problem_.is_empty()) return;
  const DLDevice device = tensors.q().device();
  plan_ = kernel.plan(problem_, num_sms_of(kernel.kind, device));
  check_memory(tensors.all());
  kernel.check_layout(tensors);
  prepare(kernel.gpus, plan_, device);
}

bool AcceptedForward::fits(const ForwardTensors &tensors, const Numbers &numbers) const {
  return numbers.max_seqlen_q == max_seqlen_q_ && numbers.max_seqlen_k == max_seqlen_k_ &&
         looks_.fit(tensors.all());
}

void AcceptedForward::leave_out_workspace(ForwardTensors &tensors, int64_t stream) const {
  if (plan_.zeroed_bytes > 0) return;
  const bool is_own = stream == kFresh || is_current(tensors.q().device(), stream);
  const bool is_taken =
      plan_.workspace_bytes > 0 && is_own && has_bytes(tensors.workspace(), plan_.workspace_bytes);
  if (!is_taken) tensors.set_workspace(nullptr);
}

double AcceptedForward::run(ForwardTensors tensors, const Numbers &numbers, bool timed) const {
  if (problem_.is_empty()) return 0;
  const OwnWorkspace own(plan_, tensors.workspace(), tensors.q().device());
  tensors.set_workspace(own.get());
  check_workspace(tensors.all(), plan_);
  check_apart(tensors.all());
  check_numbers(kernel_, numbers);
  check_key_ranges(tensors, numbers);
  return launch(plan_, kernel_.arguments(tensors, problem_, numbers), tensors.all(), timed);
}

}  // namespace flashsmith
