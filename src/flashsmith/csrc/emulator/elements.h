// Conversion of the 16-bit types to FP32, with the compiler's vectors instead of an instruction
// set's: a host without vectors gets scalars, with equal results. e4m3 uses a table.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace flashsmith::emulator {

constexpr int kWidth = 4;  // 128 bits: every host's vectors

typedef uint32_t Words __attribute__((vector_size(kWidth * sizeof(uint32_t))));
typedef float Floats __attribute__((vector_size(kWidth * sizeof(float))));

// bf16 is the upper half of an fp32.
struct DecodeBf16 {
  Floats operator()(Words bits) const { return reinterpret_cast<Floats>(bits << 16); }
};

struct DecodeF16 {
  Floats operator()(Words bits) const {
    constexpr uint32_t kRebias = (127 - 15) << 23;          // from fp16's exponent to fp32's
    constexpr uint32_t kSmallestNormal = (127 - 14) << 23;  // 2^-14
    const Words magnitude = (bits & 0x7FFF) << 13;
    const Words exponent = bits & 0x7C00;
    // A subnormal is its mantissa's fraction of the smallest normal number.
    const Words one = magnitude + kSmallestNormal;
    const Floats subnormal = reinterpret_cast<Floats>(one) - 0x1p-14f;
    const Words infinite = magnitude | 0x7F800000;
    const Words result = exponent == 0        ? reinterpret_cast<Words>(subnormal)
                         : exponent == 0x7C00 ? infinite
                                              : magnitude + kRebias;
    return reinterpret_cast<Floats>(result | (bits & 0x8000) << 16);
  }
};

// The e4m3 numbers by their bits: a sign, four bits of exponent, three of mantissa.
inline constexpr std::array<float, 256> kE4m3 = [] {
  constexpr int kSign = 0x80, kNaN = 0x7f, kMantissaBits = 3, kUnits = 1 << 9;  // of 2^-9
  std::array<float, 256> values{};
  for (int byte = 0; byte < kSign; byte++) {
    const int exponent = byte >> kMantissaBits, mantissa = byte & 7;
    const int units = exponent == 0 ? mantissa : (mantissa + 8) << (exponent - 1);
    const float value =
        byte == kNaN ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(units) / kUnits;
    values[static_cast<size_t>(byte)] = value;
    values[static_cast<size_t>(byte | kSign)] = -value;
  }
  return values;
}();

}  // namespace flashsmith::emulator
