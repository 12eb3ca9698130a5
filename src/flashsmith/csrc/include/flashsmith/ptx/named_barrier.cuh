// Execution barriers among some of the block's warps. PTX ISA, Parallel Synchronization and
// Communication Instructions: bar. Numbers 1 to 15; barrier_sync uses number 0.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// bar.sync: waits until `threads` threads, whole warps, have arrived; orders their accesses.
FLASHSMITH_DEVICE void named_barrier_sync(int id, int threads FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::named_barrier_sync(id, threads, where);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// bar.arrive: counts among the `threads`, but does not wait.
FLASHSMITH_DEVICE void named_barrier_arrive(int id, int threads FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::named_barrier_arrive(id, threads, where);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

}  // namespace flashsmith::ptx
