// A call of `forward` that a kernel has accepted: the next call with the same looks is not checked
// again.
#pragma once

#include <cstdint>

#include "host/forward_kernel.h"
#include "host/looks.h"
#include "host/workspace.h"

namespace flashsmith {

class AcceptedForward {
 public:
  // Checks and plans everything except what changes with the addresses. Throws ValueError or
  // TypeError for tensors that the kernel does not take, DeviceError for a GPU.
  AcceptedForward(const ForwardKernel &kernel, const ForwardTensors &tensors,
                  const Numbers &numbers);

  // Returns whether `run` takes these tensors: they look like the accepted ones.
  bool fits(const ForwardTensors &tensors, const Numbers &numbers) const;

  // Returns whether `run` may use the workspace that the caller keeps for `stream`.
  bool has_zeros(const ForwardTensors &tensors, int64_t stream) const {
    return may_have_zeros(plan_, tensors.workspace(), tensors.q().device(), stream);
  }

  // Drops a workspace that the launches cannot use: the caller keeps one for all calls of a kernel,
  // some of which need more.
  void leave_out_workspace(ForwardTensors &tensors, int64_t stream) const;

  // Runs the plan. The workspace is allocated if the plan needs one without zeros and the caller
  // passed none. Throws ValueError for written memory that is shared, or for numbers of another
  // variant.
  double run(ForwardTensors tensors, const Numbers &numbers, bool timed) const;

 private:
  const ForwardKernel &kernel_;
  Looks looks_;
  int64_t max_seqlen_q_, max_seqlen_k_;  // the only numbers that a plan depends on
  ForwardProblem problem_;
  Plan plan_;
};

}  // namespace flashsmith
