// FP8 e4m3 numbers as operands of products of 16-bit numbers. Unpacking is exact: subnormal numbers
// keep their values, and both NaNs stay NaN (there is no infinity). Packing rounds.
#pragma once

#include "flashsmith/ptx/bytes.cuh"

namespace flashsmith {

// Constants that place e4m3's exponent and mantissa in a wider format, with the sign on top.
template <typename value_t>
struct E4m3Within {
  // The shift from the lowest bit; the mask of a byte's magnitude and its sign after that shift; 2
  // to the difference of the formats' biases.
  static constexpr int kShift = is_half<value_t> ? 7 : 4;
  static constexpr uint32_t kMask = is_half<value_t> ? 0xbf80bf80 : 0x87f087f0;
  static constexpr uint32_t kRebias = is_half<value_t> ? 0x5c005c00 : 0x7b807b80;
  // NaN is unpacked to 480. 480 times this factor is beyond the format's range; 448, the largest
  // number, times it is not. The factors are 137 and 1.0703125 * 2^119.
  static constexpr uint32_t kBeyond = is_half<value_t> ? 0x58485848 : 0x7b097b09;
};

// Unpacks bytes kLow and kHigh (0 is the lowest) of `bytes` to a word of two numbers: bits are
// placed where the wider format has them, and multiplied to correct the bias.
template <typename value_t, int kLow, int kHigh>
FLASHSMITH_DEVICE uint32_t unpack_e4m3_by_bits(uint32_t bytes) {
  using Within = E4m3Within<value_t>;
  constexpr uint32_t kSigned = kLow | (kLow + 8) << 4 | kHigh << 8 | (kHigh + 8) << 12;
  constexpr uint32_t kZeros = 0, kMinusZeros = 0x80008000;
  const uint32_t placed = ptx::permute_bytes<kSigned>(bytes) << Within::kShift & Within::kMask;
  const uint32_t numbers = ptx::fma_pair<value_t>(placed, Within::kRebias, kMinusZeros);
  // `range` is infinite for NaN alone, so that range * 0 is a zero or NaN.
  const uint32_t range = ptx::fma_pair<value_t>(numbers, Within::kBeyond, kMinusZeros);
  return ptx::fma_pair<value_t>(range, kZeros, numbers);
}

// The assignment of a word's four bytes to two words.
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

// Rounds a number to its byte as ptx::pack_e4m3 does.
FLASHSMITH_DEVICE uint32_t pack_e4m3_by_bits(float value) {
  constexpr float kLargest = 448.f, kSmallestNormal = 0x1p-6f;
  constexpr float kSubnormalUnits = 0x1p14f;  // beside it fp32 has multiples of 2^-9, as e4m3 has
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

// Packs four numbers to bytes, the first in the lowest one.
FLASHSMITH_DEVICE uint32_t pack_e4m3(float first, float second, float third, float fourth) {
  if constexpr (ptx::kConvertsE4m3) return ptx::pack_e4m3(first, second, third, fourth);
  return pack_e4m3_by_bits(first) | pack_e4m3_by_bits(second) << 8 |
         pack_e4m3_by_bits(third) << 16 | pack_e4m3_by_bits(fourth) << 24;
}

}  // namespace flashsmith
