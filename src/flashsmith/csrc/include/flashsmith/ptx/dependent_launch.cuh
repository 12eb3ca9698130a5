// Programmatic dependent launch: a launch begins before the previous one has finished. PTX ISA,
// Parallel Synchronization and Communication Instructions: griddepcontrol (sm_90). Executed by all
// threads that touch global memory.
//
// A kernel waits first and only then lets the next launch begin, so that at most two run at a time.
// Data that its loads find in L1 has then been read by the previous launch at the earliest, and
// that launch must not write memory that it reads. Data that an older launch has read into L1 may
// have changed since.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// griddepcontrol.wait: waits until the previous launch has finished and its writes are visible.
// Returns at once if this launch was not allowed to overlap it, as on older GPUs. A kernel compiled
// for an older architecture lacks the instruction on newer GPUs, too; the host takes that into
// account.
FLASHSMITH_DEVICE void wait_for_launch_before(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::wait_for_launch_before(where);
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// griddepcontrol.launch_dependents: the next launch may begin when all blocks have executed this,
// if it may overlap this one.
FLASHSMITH_DEVICE void let_next_launch_begin() {
#ifdef FLASHSMITH_EMULATOR
  emulator::let_next_launch_begin();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace flashsmith::ptx
