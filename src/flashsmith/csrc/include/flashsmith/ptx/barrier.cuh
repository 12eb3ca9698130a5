// Execution barriers. PTX ISA, Parallel Synchronization and Communication Instructions.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// bar.sync 0: waits for all threads of the block, and orders their shared memory accesses.
FLASHSMITH_DEVICE void barrier_sync(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::barrier_sync(where);
#else
  asm volatile("bar.sync 0;" ::: "memory");
#endif
}

// bar.warp.sync: orders the shared memory accesses of a warp's lanes.
FLASHSMITH_DEVICE void warp_sync(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::warp_sync(where);
#else
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
#endif
}

}  // namespace flashsmith::ptx
