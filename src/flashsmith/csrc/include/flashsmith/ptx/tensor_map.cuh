// Tensor maps: a kernel takes them in `const __grid_constant__` parameters. The host, which
// includes this file, lets the driver fill one for a GPU, or fills the emulator's struct, which has
// the same size and alignment.
#pragma once

#include <cstdint>

#ifdef FLASHSMITH_EMULATOR
#include "emulator/tensor_map.h"
#endif

namespace flashsmith::ptx {

#ifdef FLASHSMITH_EMULATOR
using TensorMap = emulator::TensorMap;
using Swizzle = emulator::Swizzle;
#else
// cuTensorMapEncodeTiled writes this struct. That of cuda.h is aligned to 64 bytes by CUDA 12, and
// to 128 by CUDA 13.
struct alignas(128) TensorMap {
  uint64_t words[16];
};
// Chunks of 16 bytes are permuted by the address: bits [4, 4 + n) ^= bits [7, 7 + n), n = 0 to 3.
enum class Swizzle : uint8_t { none, bytes_32, bytes_64, bytes_128 };
#endif

}  // namespace flashsmith::ptx
