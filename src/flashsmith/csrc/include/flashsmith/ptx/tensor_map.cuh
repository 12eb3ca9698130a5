// Tensor maps: a kernel takes them as `const __grid_constant__ ptx::TensorMap` parameters. The host
// makes a CUtensorMap with cuTensorMapEncodeTiled, or fills the emulator's struct.
#pragma once

#include "flashsmith/ptx/platform.cuh"

#ifndef FLASHSMITH_EMULATOR
#include <cuda.h>
#endif

namespace flashsmith::ptx {

#ifdef FLASHSMITH_EMULATOR
using TensorMap = emulator::TensorMap;
using Swizzle = emulator::Swizzle;
#else
using TensorMap = CUtensorMap;
// Chunks of 16 bytes are permuted by the address: bits [4, 4 + n) ^= bits [7, 7 + n), n = 0 to 3.
enum class Swizzle : uint8_t { none, bytes_32, bytes_64, bytes_128 };
#endif

// Bytes of a row of a swizzled tile; 16, one chunk, without a swizzle.
FLASHSMITH_HOST_DEVICE constexpr int row_bytes(Swizzle swizzle) {
  return 16 << static_cast<int>(swizzle);
}

}  // namespace flashsmith::ptx
