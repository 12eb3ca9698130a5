// Bytes of a word, numbers of 8 bits in them, and arithmetic on two 16-bit numbers at a time.
// PTX ISA, Data Movement: prmt, cvt, st; Half Precision Floating Point Instructions: fma.
#pragma once

#include "flashsmith/ptx/math.cuh"

namespace flashsmith::ptx {

// prmt.b32: byte i of the result is the byte of `word` that digit i (hexadecimal, from the lowest)
// of kSelector says; 8 more: its sign eight times.
template <uint32_t kSelector>
FLASHSMITH_DEVICE uint32_t permute_bytes(uint32_t word) {
  static_assert((kSelector & 0xffff4444) == 0, "four digits, each of one of the word's four bytes");
#ifdef FLASHSMITH_EMULATOR
  return emulator::permute_bytes(word, kSelector);
#else
  uint32_t result;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(result) : "r"(word), "n"(kSelector));
  return result;
#endif
}

// fma.rn.{f16x2,bf16x2}: a * b + c in either half; subnormal numbers are numbers.
template <typename value_t>
FLASHSMITH_DEVICE uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::fma_pair(a, b, c,
                            is_half<value_t> ? emulator::MmaType::f16 : emulator::MmaType::bf16);
#else
  uint32_t result;
  if constexpr (is_half<value_t>) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  }
  return result;
#endif
}

// Whether the target converts e4m3 by an instruction.
#if defined(FLASHSMITH_EMULATOR) || __CUDA_ARCH__ >= 890
constexpr bool kConvertsE4m3 = true;
#else
constexpr bool kConvertsE4m3 = false;
#endif

// cvt.rn.f16x2.e4m3x2 (sm_89), which is exact: the lower byte of `bytes` becomes the lower half.
FLASHSMITH_DEVICE uint32_t unpack_e4m3(uint16_t bytes) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::unpack_e4m3(bytes);
#elif __CUDA_ARCH__ >= 890
  uint32_t word;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(word) : "h"(bytes));
  return word;
#else
  return 0;
#endif
}

// cvt.rn.satfinite.e4m3x2.f32 (sm_89): to nearest even, `low` in the lower byte. What is beyond 448
// becomes that, infinity too; NaN stays NaN.
FLASHSMITH_DEVICE uint16_t pack_e4m3(float low, float high) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::pack_e4m3(low, high);
#elif __CUDA_ARCH__ >= 890
  uint16_t bytes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bytes) : "f"(high), "f"(low));
  return bytes;
#else
  return 0;
#endif
}

// st.global.v2.b32 where `active`.
FLASHSMITH_DEVICE void store_global_8_if(bool active, void *destination,
                                         const uint32_t (&words)[2]) {
#ifdef FLASHSMITH_EMULATOR
  emulator::store_global(destination, words, sizeof(words), active);
#else
  if (!active) return;
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(destination), "r"(words[0]), "r"(words[1])
               : "memory");
#endif
}

}  // namespace flashsmith::ptx
