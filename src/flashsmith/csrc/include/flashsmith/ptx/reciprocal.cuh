// PTX ISA, Floating Point Instructions: rcp.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// rcp.approx.ftz.f32: 1 / x, with an error of at most one unit in the last place; 1 / infinity is
// 0.
FLASHSMITH_DEVICE float reciprocal_approx(float x) {
#ifdef FLASHSMITH_EMULATOR
  return 1 / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

}  // namespace flashsmith::ptx
