// Prepares the divisions of kernels (attention/divisor.cuh).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "flashsmith/decode_params.h"

namespace flashsmith {

// `value`: positive, or else no thread divides by it.
inline Divisor divisor(int64_t value) {
  const uint64_t positive = std::max<int64_t>(value, 1);
  const int shift = std::bit_width(positive - 1);
  const uint64_t multiplier = ((uint64_t{1} << (31 + shift)) + positive - 1) / positive;
  return {static_cast<int>(value), static_cast<uint32_t>(multiplier), shift};
}

}  // namespace flashsmith
