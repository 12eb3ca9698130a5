// A call of `forward` that a kernel took: the next one that looks the same is not checked again.
#pragma once

#include <cstdint>

#include "host/forward_kernel.h"
#include "host/launch.h"
#include "host/looks.h"

namespace flashsmith {

class AcceptedForward {
 public:
  // Checks everything but what changes with the addresses. Throws ValueError or TypeError for
  // tensors that the kernel does not take, DeviceError for a GPU.
  AcceptedForward(const ForwardKernel &kernel, const ForwardTensors &tensors,
                  const Numbers &numbers);

  // Whether `run` may have these: they look like those that were taken, and the workspace of zeros
  // is at the disposal of the stream that is now the current one.
  bool fits(const ForwardTensors &tensors, const Numbers &numbers) const;

  // Throws ValueError for memory that is written and shared, or for numbers of another variant.
  double run(const ForwardTensors &tensors, const Numbers &numbers, bool timed) const;

 private:
  const ForwardKernel &kernel_;
  Looks looks_;
  int64_t max_seqlen_q_;  // the number on which a plan depends
  ForwardProblem problem_;
  Plan plan_;
  Stream stream_ = nullptr;
};

}  // namespace flashsmith
