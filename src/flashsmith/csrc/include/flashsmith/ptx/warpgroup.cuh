// Instructions of warp-specialised kernels. PTX ISA, Miscellaneous Instructions: setmaxnreg;
// Parallel Synchronization and Communication Instructions: elect.sync.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

constexpr int kWarpgroupThreads = 128;

// setmaxnreg.inc: gives the threads of the warpgroup more registers, once others have released
// them.
template <int kRegisters>
FLASHSMITH_DEVICE void increase_registers() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
                "a thread has 24 to 256 registers, in steps of 8");
#ifdef FLASHSMITH_EMULATOR
  emulator::set_register_count(kRegisters, true);
#else
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// setmaxnreg.dec: releases the registers of the warpgroup's threads beyond kRegisters.
template <int kRegisters>
FLASHSMITH_DEVICE void decrease_registers() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
                "a thread has 24 to 256 registers, in steps of 8");
#ifdef FLASHSMITH_EMULATOR
  emulator::set_register_count(kRegisters, false);
#else
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// elect.sync: returns true in one lane of the warp, always the same. The compiler then knows that
// only one thread executes the code under it.
FLASHSMITH_DEVICE bool elect_one() {
#ifdef FLASHSMITH_EMULATOR
  return emulator::elect_one();
#else
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
#endif
}

// Returns the warp's index in its block, in a form that the compiler knows to be uniform.
FLASHSMITH_DEVICE int warp_index() {
#ifdef FLASHSMITH_EMULATOR
  return thread_index() / 32;
#else
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
#endif
}

}  // namespace flashsmith::ptx
