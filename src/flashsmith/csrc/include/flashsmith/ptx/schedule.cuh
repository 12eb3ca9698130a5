// Keeps compiler and assembler from moving computations.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// Returns the same value, but hides from the compiler that it is the same each time: what is
// computed from it is computed again at each use, and takes no registers in between.
FLASHSMITH_DEVICE int recomputed(int value) {
#ifndef FLASHSMITH_EMULATOR
  asm volatile("" : "+r"(value));
#endif
  return value;
}

// Returns the thread's lane, read anew each time, so that it takes no register in between. PTX ISA,
// Special Registers: %laneid.
FLASHSMITH_DEVICE int lane_index() {
#ifdef FLASHSMITH_EMULATOR
  return thread_index() % 32;
#else
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
#endif
}

// Keeps instructions after this point from being issued before those in front of it. ptxas reorders
// instructions freely inside a basic block, whatever their order in PTX, but not across its end:
// here an exit that never happens, one comparison and one predicated instruction. `never_zero` is a
// kernel parameter, so that ptxas cannot know it.
FLASHSMITH_DEVICE void schedule_fence([[maybe_unused]] int never_zero) {
#ifndef FLASHSMITH_EMULATOR
  asm volatile("{.reg .pred zero; setp.eq.s32 zero, %0, 0; @zero exit;}" ::"r"(never_zero)
               : "memory");
#endif
}

}  // namespace flashsmith::ptx
