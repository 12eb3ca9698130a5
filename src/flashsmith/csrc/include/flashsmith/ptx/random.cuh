// Decisions by random numbers. PTX ISA, Comparison and Selection Instructions: setp.bf16x2;
// Floating Point Instructions: neg.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// Sets whether the 15 lower bits of each half of `pair` are less than the same half of `bounds`,
// which is at most 0x7f80. Up to there BF16 numbers are in the order of their bits; beyond are
// infinity and NaN, which is less than nothing.
FLASHSMITH_DEVICE void both_below(bool (&below)[2], uint32_t pair, uint32_t bounds) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t low, high;
  asm("{.reg .pred low, high; .reg .b32 numbers; abs.bf16x2 numbers, %2; "
      "setp.lt.bf16x2 low|high, numbers, %3; selp.u32 %0, 1, 0, low; selp.u32 %1, 1, 0, high;}"
      : "=r"(low), "=r"(high)
      : "r"(pair), "r"(bounds));
  below[0] = low;
  below[1] = high;
#else
  below[0] = (pair & 0x7fff) < (bounds & 0x7fff);
  below[1] = (pair & 0x7fff0000) < (bounds & 0x7fff0000);
#endif
}

// neg.f32 under a predicate: it runs as an addition, while a selection would take the logic pipe.
FLASHSMITH_DEVICE void negate_if(bool condition, float &value) {
#ifdef FLASHSMITH_EMULATOR
  if (condition) value = -value;
#else
  if (condition) asm("neg.f32 %0, %0;" : "+f"(value));
#endif
}

}  // namespace flashsmith::ptx
