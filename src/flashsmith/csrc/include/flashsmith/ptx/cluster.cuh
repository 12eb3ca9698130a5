// Clusters: blocks that run together and reach each other's shared memory. PTX ISA, Special
// Registers: %cluster_ctarank; Parallel Synchronization and Communication Instructions:
// barrier.cluster.
//
// The other blocks can access a block's shared memory from the first cluster_sync until the block
// exits. It must not exit before it knows, by a last cluster_sync or by mbarriers, that they have
// finished with it.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// Returns the block's rank in its cluster. It is read where it is needed, because the producer
// thread has few registers to keep it in.
FLASHSMITH_DEVICE int cluster_rank() {
#ifdef FLASHSMITH_EMULATOR
  return static_cast<int>(emulator::cluster_rank());
#else
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#endif
}

// barrier.cluster.arrive.release and wait.acquire: waits for all threads of the cluster's blocks
// that have not exited, and orders their shared memory accesses.
FLASHSMITH_DEVICE void cluster_sync(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::cluster_sync(where);
#else
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}

}  // namespace flashsmith::ptx
