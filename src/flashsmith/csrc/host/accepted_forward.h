// A call of `forward` that a kernel took: the next one that looks the same is not checked again.
#pragma once

#include <cstdint>

#include "host/forward_kernel.h"
#include "host/looks.h"
#include "host/workspace.h"

namespace flashsmith {

class AcceptedForward {
 public:
  // Checks and plans everything but what changes with the addresses. Throws ValueError or TypeError
  // for tensors that the kernel does not take, DeviceError for a GPU.
  AcceptedForward(const ForwardKernel &kernel, const ForwardTensors &tensors,
                  const Numbers &numbers);

  // Whether `run` may have these: they look like those that were taken.
  bool fits(const ForwardTensors &tensors, const Numbers &numbers) const;

  // Whether `run` may have the workspace that the caller keeps for `stream`.
  bool has_zeros(const ForwardTensors &tensors, int64_t stream) const {
    return may_have_zeros(plan_, tensors.workspace(), tensors.q().device(), stream);
  }

  // Takes away a workspace that is no place for what the launches hand on: the caller keeps one for
  // all calls of a kernel, of which some want more.
  void leave_out_workspace(ForwardTensors &tensors, int64_t stream) const;

  // The workspace is allocated where the plan wants one that holds no zeros, and none was given.
  // Throws ValueError for memory that is written and shared, or for numbers of another variant.
  double run(ForwardTensors tensors, const Numbers &numbers, bool timed) const;

 private:
  const ForwardKernel &kernel_;
  Looks looks_;
  int64_t max_seqlen_q_;  // the number on which a plan depends
  ForwardProblem problem_;
  Plan plan_;
};

}  // namespace flashsmith
