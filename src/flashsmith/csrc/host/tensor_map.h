// Descriptions of tensors for bulk copies, for the driver or for the emulator.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include "flashsmith/params.h"
#include "flashsmith/ptx/tensor_map.cuh"
#include "host/args/argument.h"

namespace flashsmith {

// The box that a copy moves: `rows` positions of one head by `columns` elements, swizzled. Elements
// outside the tensor read as zero and are not written. With packed heads, the rows of a position's
// heads are side by side, and the map has the head before the sequence.
struct Box {
  int columns, rows;
  ptx::Swizzle swizzle;
  int packed_heads = 0;  // 0: one head

  bool operator==(const Box &) const = default;
};

// Returns the distance from one row of a sequence to the next, in elements. If sequences have one
// row each, it is the batch stride, so that sequences end a whole number of rows apart.
int64_t row_stride(const tvm::ffi::TensorView &tensor);

// Makes the map of a (batch, sequence, head, d_head) tensor that passed the checks; `varlen`: a map
// of varlen sequences, see sm90/rows.cuh. The map of an empty tensor must not be used. Throws
// DeviceError if the driver refuses.
ptx::TensorMap make_tensor_map(const tvm::ffi::TensorView &tensor, ScalarType type, const Box &box,
                               bool varlen);

// Throws ValueError for strides that copies cannot step by: strides have to be positive.
void check_map_strides(const Argument &argument, const tvm::ffi::TensorView &t);

// Throws ValueError if varlen sequences do not end at a whole number of rows of the tensor.
void check_map_batch_stride(const Argument &argument, const tvm::ffi::TensorView &t);

// Throws ValueError if the pages of a tensor are not whole boxes.
void check_map_pages(const Argument &argument, const tvm::ffi::TensorView &t);

// Throws ValueError if the rows of all slots or pages, any of which may be used, cannot be counted
// as int.
void check_map_reach(const Argument &argument, const tvm::ffi::TensorView &t);

// Returns the number of rows between batch entries.
int map_batch_rows(const tvm::ffi::TensorView &t);

}  // namespace flashsmith
