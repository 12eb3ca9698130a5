// A call of `forward` that a kernel took: the next one that looks the same is not checked again.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "host/forward_kernel.h"
#include "host/launch.h"

namespace flashsmith {

// All of a tensor but its contents, and its address but for the alignment.
struct TensorLook {
  int rank;
  DLDataType dtype;
  DLDevice device;
  std::array<int64_t, kMaxRank> sizes, strides;
  uintptr_t misalignment;

  bool fits(const tvm::ffi::TensorView &t) const;
};

class AcceptedForward {
 public:
  // Checks everything but what changes with the addresses. Throws ValueError or TypeError for
  // tensors that the kernel does not take, DeviceError for a GPU.
  AcceptedForward(const ForwardKernel &kernel, const ForwardTensors &tensors,
                  const ForwardNumbers &numbers);

  // Whether `run` may have these: they look like those that were taken, and the workspace of zeros
  // is at the disposal of the stream that is now the current one.
  bool fits(const ForwardTensors &tensors, const ForwardNumbers &numbers) const;

  // Throws ValueError for memory that is written and shared, or for numbers of another variant.
  double run(const ForwardTensors &tensors, const ForwardNumbers &numbers, bool timed) const;

 private:
  const ForwardKernel &kernel_;
  std::vector<TensorLook> looks_;  // of those that were given
  uint32_t given_ = 0;             // which those are: a bit each
  int64_t max_seqlen_q_;           // the number on which a plan depends
  ForwardProblem problem_;
  Plan plan_;
  Stream stream_ = nullptr;

  void take_look(const ForwardTensors &tensors);
  bool looks_like(const Tensors &tensors) const;
};

}  // namespace flashsmith
