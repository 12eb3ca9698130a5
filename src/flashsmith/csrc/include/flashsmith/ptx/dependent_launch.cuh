// Launches that begin before the one before is over. PTX ISA, Parallel Synchronization and
// Communication Instructions: griddepcontrol (sm_90). By all threads that touch global memory.
//
// A kernel waits first and lets the next begin then, so that no more than two are there at a time.
// What its loads find in L1 is then no older than the launch before, which must not write what it
// reads: memory that a launch long before has read there may have changed since.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// griddepcontrol.wait: the launch before is over, and what it has written is visible. At once
// where this launch was not allowed to overlap it, as on older GPUs and the emulator. Compiled for
// an older architecture a kernel does not have it, on newer GPUs either: the host sees to that.
FLASHSMITH_DEVICE void wait_for_launch_before() {
#if !defined(FLASHSMITH_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// griddepcontrol.launch_dependents: when all blocks have come here the next launch may begin, if it
// may overlap this one.
FLASHSMITH_DEVICE void let_next_launch_begin() {
#if !defined(FLASHSMITH_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace flashsmith::ptx
