// Numbers of 8 bits, e4m3, as operands of products of 16-bit numbers. These conversions are exact:
// subnormal numbers are numbers, and NaN, of which there are two and no infinity, stays NaN. And
// back, rounding.
#pragma once

#include "flashsmith/ptx/bytes.cuh"

namespace flashsmith {

// How e4m3's exponent and mantissa lie in a wider format, with its sign on top.
template <typename value_t>
struct E4m3Within {
  // Places from the lowest bit; what is left of a byte and its sign, shifted so; 2 to the
  // difference of the formats' biases.
  static constexpr int kShift = is_half<value_t> ? 7 : 4;
  static constexpr uint32_t kMask = is_half<value_t> ? 0xbf80bf80 : 0x87f087f0;
  static constexpr uint32_t kRebias = is_half<value_t> ? 0x5c005c00 : 0x7b807b80;
  // 480, as which NaN comes out, times this is beyond the format's range; 448, the largest number,
  // is not: 137, and 1.0703125 * 2^119.
  static constexpr uint32_t kBeyond = is_half<value_t> ? 0x58485848 : 0x7b097b09;
};

// Two bytes of `bytes`, by their places from the lowest, as a word of two numbers. Placed where the
// wider format has its bits, and multiplied.
template <typename value_t, int kLow, int kHigh>
FLASHSMITH_DEVICE uint32_t unpack_e4m3_by_bits(uint32_t bytes) {
  using Within = E4m3Within<value_t>;
  constexpr uint32_t kSigned = kLow | (kLow + 8) << 4 | kHigh << 8 | (kHigh + 8) << 12;
  constexpr uint32_t kZeros = 0, kMinusZeros = 0x80008000;
  const uint32_t placed = ptx::permute_bytes<kSigned>(bytes) << Within::kShift & Within::kMask;
  const uint32_t numbers = ptx::fma_pair<value_t>(placed, Within::kRebias, kMinusZeros);
  // Zeros, or NaN for infinity.
  const uint32_t range = ptx::fma_pair<value_t>(numbers, Within::kBeyond, kMinusZeros);
  return ptx::fma_pair<value_t>(range, kZeros, numbers);
}

// Which of a word's four bytes go to which of two words.
enum class BytePairs : uint8_t { neighbours, in_turn };  // 0 1 | 2 3, and 0 2 | 1 3

template <typename value_t, BytePairs kPairs>
FLASHSMITH_DEVICE void unpack_e4m3(uint32_t (&words)[2], uint32_t bytes) {
  constexpr bool kInTurn = kPairs == BytePairs::in_turn;
  if constexpr (is_half<value_t> && ptx::kConvertsE4m3) {
    ptx::unpack_e4m3(words, kInTurn ? ptx::permute_bytes<0x3120>(bytes) : bytes);
  } else {
    words[0] = unpack_e4m3_by_bits<value_t, 0, kInTurn ? 2 : 1>(bytes);
    words[1] = unpack_e4m3_by_bits<value_t, kInTurn ? 1 : 2, 3>(bytes);
  }
}

// The byte of a number, as ptx::pack_e4m3 rounds it.
FLASHSMITH_DEVICE uint32_t pack_e4m3_by_bits(float value) {
  constexpr float kLargest = 448.f, kSmallestNormal = 0x1p-6f;
  constexpr float kSubnormalUnits = 0x1p14f;  // fp32 has multiples of 2^-9 beside it, as e4m3 has
  constexpr int kLost = 23 - 3, kRebias = (127 - 7) << 3, kNaN = 0x7f;
  if (value != value) return kNaN;
  const uint32_t sign = ptx::float_bits(value) >> 24 & 0x80;
  const float magnitude = fminf(fabsf(value), kLargest);
  if (magnitude < kSmallestNormal) {
    return sign | (ptx::float_bits(magnitude + kSubnormalUnits) & 0xff);
  }
  const uint32_t bits = ptx::float_bits(magnitude), half = 1u << (kLost - 1);
  return sign | ((bits + half - 1 + (bits >> kLost & 1)) >> kLost) - kRebias;
}

// Four numbers as bytes, the first in the lowest one.
FLASHSMITH_DEVICE uint32_t pack_e4m3(float first, float second, float third, float fourth) {
  if constexpr (ptx::kConvertsE4m3) return ptx::pack_e4m3(first, second, third, fourth);
  return pack_e4m3_by_bits(first) | pack_e4m3_by_bits(second) << 8 |
         pack_e4m3_by_bits(third) << 16 | pack_e4m3_by_bits(fourth) << 24;
}

}  // namespace flashsmith
