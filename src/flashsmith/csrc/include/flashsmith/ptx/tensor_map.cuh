// Tensor maps: a kernel takes them in `const __grid_constant__` parameters. The host, which
// includes this file, creates a CUtensorMap with cuTensorMapEncodeTiled, or fills the emulator's
// struct.
#pragma once

#include <cstdint>

#ifdef FLASHSMITH_EMULATOR
#include "emulator/tensor_map.h"
#else
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

}  // namespace flashsmith::ptx
