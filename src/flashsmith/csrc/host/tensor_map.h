// Descriptions of tensors for bulk copies: for the driver, or for the emulator.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include "flashsmith/flash_attention.cuh"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith {

// Of a (batch, sequence, head, d_head) tensor that passed check_forward. Copies move boxes of
// `box_rows` positions of one head by `box_columns` elements, swizzled; what lies outside the
// tensor reads as zero and is not written. Throws DeviceError if the driver refuses.
ptx::TensorMap make_tensor_map(const tvm::ffi::TensorView &tensor, ScalarType type, int box_columns,
                               int box_rows, ptx::Swizzle swizzle);

}  // namespace flashsmith
