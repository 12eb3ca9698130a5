// Matrix descriptors of wgmma's operands in shared memory. PTX ISA, Asynchronous Warpgroup Level
// Matrix Instructions: Matrix Descriptor Format, Shared Memory Matrix Layout.
#pragma once

#include "flashsmith/ptx/platform.cuh"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith::ptx {

// Returns the bytes of a row of a swizzled tile; 16, one chunk, without a swizzle.
FLASHSMITH_HOST_DEVICE constexpr int row_bytes(Swizzle swizzle) {
  return 16 << static_cast<int>(swizzle);
}

// The contiguous dimension of an operand: K, or the other one.
enum class Major { k, mn };

using MatrixDescriptor = uint64_t;

// Encodes a descriptor. `start` is 16-byte aligned; tiles begin where their swizzle does (at
// multiples of eight rows).
FLASHSMITH_DEVICE MatrixDescriptor matrix_descriptor(shared_address start, int leading_bytes,
                                                     int stride_bytes, Swizzle swizzle) {
#ifdef FLASHSMITH_EMULATOR
  start -= shared_memory();
#endif
  constexpr uint32_t kAddressMask = 0x3FFFF;
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>(bytes >> 4); };
  const uint64_t mode = (4 - static_cast<unsigned>(swizzle)) & 3;  // 0, 3, 2, 1
  return field(static_cast<uint32_t>(start) & kAddressMask) |
         field(static_cast<uint32_t>(leading_bytes)) << 16 |
         field(static_cast<uint32_t>(stride_bytes)) << 32 | mode << 62;
}

// Describes an operand with K contiguous in a swizzled tile: rows are as long as the swizzle,
// groups of eight rows `stride_bytes` apart (by default adjacent). The next 16 elements of K are 32
// bytes further, up to the end of the row.
FLASHSMITH_DEVICE MatrixDescriptor k_major_descriptor(shared_address start, Swizzle swizzle,
                                                      int stride_bytes = 0) {
  return matrix_descriptor(start, 16, stride_bytes ? stride_bytes : 8 * row_bytes(swizzle),
                           swizzle);
}

// Describes an operand with K across the rows of a swizzled tile: a row holds row_bytes(swizzle) /
// 2 elements of the other dimension, the next ones are `leading_bytes` further; groups of eight
// rows are adjacent. The next 16 elements of K are 16 rows further.
FLASHSMITH_DEVICE MatrixDescriptor mn_major_descriptor(shared_address start, Swizzle swizzle,
                                                       int leading_bytes) {
  return matrix_descriptor(start, leading_bytes, 8 * row_bytes(swizzle), swizzle);
}

// Returns the descriptor of the same operand, `bytes` (a multiple of 16) further.
FLASHSMITH_DEVICE MatrixDescriptor advance(MatrixDescriptor descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

}  // namespace flashsmith::ptx
