// Products, exponential, conversion and exchange between lanes.
// PTX ISA, Floating Point Instructions: mul, ex2; Data Movement: cvt, shfl.sync.
#pragma once

#include <cmath>
#include <limits>

#include "flashsmith/ptx/platform.cuh"
#include "flashsmith/types.cuh"

namespace flashsmith::ptx {

// ex2.approx.ftz.f32: 2^x, relative error 2^-22; results below 2^-126 are 0, as is 2^-inf.
FLASHSMITH_DEVICE float exp2_approx(float x) {
#ifdef FLASHSMITH_EMULATOR
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.f : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// lg2.approx.ftz.f32: log2, absolute error 2^-22 near 1, else relative.
FLASHSMITH_DEVICE float log2_approx(float x) {
#ifdef FLASHSMITH_EMULATOR
  return std::log2(x);
#else
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// mul.rz.f32: rounds towards zero, so that an overflow gives the largest finite number.
FLASHSMITH_DEVICE float mul_rz(float x, float y) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::mul_rz(x, y);
#else
  float z;
  asm("mul.rz.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
#endif
}

// tanh.approx.f32: relative error 2^-11.
FLASHSMITH_DEVICE float tanh_approx(float x) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::tanh_approx(x);
#else
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// The following functions reinterpret a number as bits, and bits as a number.
FLASHSMITH_HOST_DEVICE uint32_t float_bits(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
FLASHSMITH_HOST_DEVICE float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// cvt.rn.{f16x2,bf16x2}.f32: `low` in the lower half of the word.
template <typename value_t>
FLASHSMITH_DEVICE uint32_t pack(float low, float high) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::pack(low, high,
                        is_half<value_t> ? emulator::MmaType::f16 : emulator::MmaType::bf16);
#else
  uint32_t word;
  if constexpr (is_half<value_t>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#endif
}

// cvt.rn.relu.{f16x2,bf16x2}.f32: packs numbers below zero as zeros.
template <typename value_t>
FLASHSMITH_DEVICE uint32_t pack_positive(float low, float high) {
#ifdef FLASHSMITH_EMULATOR
  return pack<value_t>(low < 0.f ? 0.f : low, high < 0.f ? 0.f : high);
#else
  uint32_t word;
  if constexpr (is_half<value_t>) {
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#endif
}

// cvt.f32.{f16,bf16}: exact.
template <typename value_t>
FLASHSMITH_DEVICE float unpack(uint16_t bits) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::unpack(bits,
                          is_half<value_t> ? emulator::MmaType::f16 : emulator::MmaType::bf16);
#else
  if constexpr (is_half<value_t>) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  } else {
    return bits_float(static_cast<uint32_t>(bits) << 16);
  }
#endif
}

// cvt.rzi.s32.f32: truncates; numbers outside of int32_t become the nearest int32_t, NaN becomes 0.
FLASHSMITH_DEVICE int32_t float_to_int(float value) {
#ifdef FLASHSMITH_EMULATOR
  if (!(value >= -0x1p31f)) return value != value ? 0 : INT32_MIN;
  return value >= 0x1p31f ? INT32_MAX : static_cast<int32_t>(value);
#else
  int32_t result;
  asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(result) : "f"(value));
  return result;
#endif
}

// shfl.sync.bfly.b32: returns the value of lane (this lane ^ kLaneMask).
template <int kLaneMask>
FLASHSMITH_DEVICE float shuffle_xor(float value) {
  static_assert(kLaneMask > 0 && kLaneMask < 32, "a lane mask stays inside the warp");
#ifdef FLASHSMITH_EMULATOR
  return emulator::shuffle_xor(value, kLaneMask);
#else
  return __shfl_xor_sync(0xffffffff, value, kLaneMask);
#endif
}

// vote.sync.any: returns whether the predicate holds in any lane of the warp.
FLASHSMITH_DEVICE bool vote_any(bool predicate) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::vote_any(predicate);
#else
  return __any_sync(0xffffffff, predicate);
#endif
}

}  // namespace flashsmith::ptx
