// Descriptions of tensors for bulk copies: for the driver, or for the emulator.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include "flashsmith/params.h"
#include "flashsmith/ptx/tensor_map.cuh"
#include "host/args/argument.h"

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

// Of a (batch, sequence, head, d_head) tensor that passed the checks; `varlen`: of its sequences
// with lengths of their own, see sm90/rows.cuh. Of an empty tensor: one that nobody may use. Throws
// DeviceError if the driver refuses.
ptx::TensorMap make_tensor_map(const tvm::ffi::TensorView &tensor, ScalarType type, const Box &box,
                               bool varlen);

// Throws ValueError for strides that copies cannot step by: they are positive only.
void check_map_strides(const Argument &argument, const tvm::ffi::TensorView &t);

// Of sequences with lengths of their own, where one ends is counted in rows of the tensor.
void check_map_batch_stride(const Argument &argument, const tvm::ffi::TensorView &t);

// Of a tensor of pages: each is made of whole boxes.
void check_map_pages(const Argument &argument, const tvm::ffi::TensorView &t);

// Of entries or pages, of which any may be anywhere: the tensor's rows are counted as int.
void check_map_reach(const Argument &argument, const tvm::ffi::TensorView &t);

// Rows from one entry of the batch to the next.
int map_batch_rows(const tvm::ffi::TensorView &t);

}  // namespace flashsmith
