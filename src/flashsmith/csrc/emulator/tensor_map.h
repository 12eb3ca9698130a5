// A tensor map: the description of a tensor for bulk copies, with the arguments of
// cuTensorMapEncodeTiled.
#pragma once

#include <cstdint>

namespace flashsmith::emulator {

// Chunks of 16 bytes are permuted by the address: bits [4, 4 + n) ^= bits [7, 7 + n), n = 0 to 3.
enum class Swizzle : uint8_t { none, bytes_32, bytes_64, bytes_128 };

constexpr uint32_t swizzled(uint32_t address, Swizzle swizzle) {
  const uint32_t bits = (1u << static_cast<unsigned>(swizzle)) - 1;
  return address ^ (address >> 7 & bits) << 4;
}

constexpr unsigned kMaxTensorRank = 5;

// As large and aligned as the driver's struct, so that arguments of kernels have the same layout.
struct alignas(128) TensorMap {
  void *base;  // 16-byte aligned
  uint32_t element_bytes, rank;
  uint64_t sizes[kMaxTensorRank];    // in elements, the contiguous dimension first
  uint64_t strides[kMaxTensorRank];  // in bytes; [0] is element_bytes, others multiples of 16
  uint32_t box[kMaxTensorRank];      // in elements
  Swizzle swizzle;
};
static_assert(sizeof(TensorMap) == 128);

}  // namespace flashsmith::emulator
