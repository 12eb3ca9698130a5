// The 16-bit types to fp32, with the compiler's vectors rather than those of an instruction set:
// what has none gets scalars, with equal results.
#pragma once

#include <cstdint>

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

}  // namespace flashsmith::emulator
