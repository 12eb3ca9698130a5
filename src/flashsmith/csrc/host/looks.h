// The looks of a call's tensors: the next call with the same looks is not checked again.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "host/args/argument.h"

namespace flashsmith {

// All properties of a tensor except its contents and its address, of which the alignment counts.
struct TensorLook {
  int rank;
  DLDataType dtype;
  DLDevice device;
  std::array<int64_t, kMaxRank> sizes, strides;
  uintptr_t misalignment;

  bool fits(const tvm::ffi::TensorView &t) const;
};

class Looks {
  std::vector<TensorLook> looks_;  // of the tensors that were passed
  uint32_t given_ = 0;             // the tensors that were passed, a bit each
  static_assert(kMaxTensors <= 32, "a bit for each");

 public:
  explicit Looks(const Tensors &tensors);

  bool fit(const Tensors &tensors) const;
};

}  // namespace flashsmith
