// Clusters: blocks that run together and reach each other's shared memory. PTX ISA, Special
// Registers: %cluster_ctarank; Parallel Synchronization and Communication Instructions:
// barrier.cluster.
//
// A block's shared memory is there for the others from the first cluster_sync until it ends: it
// must not end before it knows, by a last cluster_sync or by mbarriers, that the others have done
// with it.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// The block's number in its cluster. Read where it is needed: the thread that loads has few
// registers to keep it in.
FLASHSMITH_DEVICE int cluster_rank() {
#ifdef FLASHSMITH_EMULATOR
  return static_cast<int>(emulator::cluster_rank());
#else
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#endif
}

// barrier.cluster.arrive.release and wait.acquire: all threads of the cluster's blocks that have
// not returned arrive; orders their shared memory accesses.
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
