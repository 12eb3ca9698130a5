// Descriptions of tensors for bulk copies: for the driver, or for the emulator.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include "flashsmith/params.h"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith {

// What copies move: `rows` positions of one head by `columns` elements, swizzled. What lies outside
// the tensor reads as zero and is not written.
struct Box {
  int columns, rows;
  ptx::Swizzle swizzle;

  bool operator==(const Box &) const = default;
};

// From one row of a sequence to the next, in elements. Where sequences have one row each, their
// batch's stride: so that one ends a whole number of rows after the other.
int64_t row_stride(const tvm::ffi::TensorView &tensor);

// Of a (batch, sequence, head, d_head) tensor that passed the checks; `ragged`: of its sequences
// with lengths of their own, see sm90/rows.cuh. Throws DeviceError if the driver refuses.
ptx::TensorMap make_tensor_map(const tvm::ffi::TensorView &tensor, ScalarType type, const Box &box,
                               bool ragged);

}  // namespace flashsmith
