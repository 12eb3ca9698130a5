// Bytes of a word, FP8 numbers in them, and arithmetic on two 16-bit numbers at a time. PTX ISA,
// Data Movement: prmt, cvt, st; Half Precision Floating Point Instructions: fma.
#pragma once

#include "flashsmith/ptx/math.cuh"

namespace flashsmith::ptx {

// prmt.b32: digit i (hexadecimal, from the lowest) of the selector chooses byte i of the result
// among the bytes of the two words, `first` counted first. A digit plus 8 replicates the byte's
// sign.
FLASHSMITH_DEVICE uint32_t permute_bytes(uint32_t first, uint32_t second, uint32_t selector) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::permute_bytes(first, second, selector);
#else
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(first), "r"(second), "r"(selector));
  return result;
#endif
}

// prmt.b32 of one word, with a selector that is known at compile time.
template <uint32_t kSelector>
FLASHSMITH_DEVICE uint32_t permute_bytes(uint32_t word) {
  static_assert((kSelector & 0xffff4444) == 0, "four digits, each of one of the word's four bytes");
  return permute_bytes(word, 0, kSelector);
}

// fma.rn.{f16x2,bf16x2}: a * b + c in each half; subnormal numbers are kept.
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

// Whether the target has instructions that convert e4m3.
#if defined(FLASHSMITH_EMULATOR) || __CUDA_ARCH__ >= 890
constexpr bool kConvertsE4m3 = true;
#else
constexpr bool kConvertsE4m3 = false;
#endif

// cvt.rn.f16x2.e4m3x2 (sm_89), twice; the conversion is exact. Four bytes become two words, the
// lowest byte the lower half of the first.
FLASHSMITH_DEVICE void unpack_e4m3(uint32_t (&words)[2], uint32_t bytes) {
#ifdef FLASHSMITH_EMULATOR
  words[0] = emulator::unpack_e4m3(static_cast<uint16_t>(bytes));
  words[1] = emulator::unpack_e4m3(static_cast<uint16_t>(bytes >> 16));
#elif __CUDA_ARCH__ >= 890
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}"
      : "=r"(words[0]), "=r"(words[1])
      : "r"(bytes));
#endif
}

// cvt.rn.satfinite.e4m3x2.f32 (sm_89), twice: rounds to nearest even, the first number in the
// lowest byte. Numbers beyond 448, infinity too, become 448; NaN stays NaN.
FLASHSMITH_DEVICE uint32_t pack_e4m3(float first, float second, float third, float fourth) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::pack_e4m3(first, second) | uint32_t{emulator::pack_e4m3(third, fourth)} << 16;
#elif __CUDA_ARCH__ >= 890
  uint32_t word;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(word)
      : "f"(first), "f"(second), "f"(third), "f"(fourth));
  return word;
#else
  return 0;
#endif
}

// st.global.v2.b32 if `active`.
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
