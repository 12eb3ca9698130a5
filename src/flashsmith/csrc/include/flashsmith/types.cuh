// The element types are for storage only: arithmetic happens in FP32 registers and in the tensor
// cores.
#pragma once

#include <cstdint>
#include <type_traits>

#include "flashsmith/params.h"

namespace flashsmith {

struct half_t {
  uint16_t bits;
};

struct bfloat16_t {
  uint16_t bits;
};

// FP8 e4m3: one bit of sign, four of exponent, three of mantissa. It has no infinity; all ones are
// NaN.
struct e4m3_t {
  uint8_t bits;
};

template <ScalarType kType>
using value_type = std::conditional_t<kType == ScalarType::Half, half_t, bfloat16_t>;

template <typename value_t>
constexpr bool is_half = std::is_same_v<value_t, half_t>;

template <typename value_t>
constexpr bool is_e4m3 = std::is_same_v<value_t, e4m3_t>;

}  // namespace flashsmith
