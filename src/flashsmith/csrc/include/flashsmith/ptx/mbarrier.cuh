// Barriers in shared memory that count arrivals and the bytes of bulk copies; they are 8 bytes
// each, 8-byte aligned. PTX ISA, Parallel Synchronization and Communication Instructions: mbarrier.
//
// All of these are instructions of single threads. An arrival releases the accesses of its thread
// and those of its warp as a whole (ldmatrix, wgmma it has waited for); loads and stores of other
// lanes need a warp_sync before it. An arrival overtakes a load from shared memory that is in
// flight, and a bulk copy may then overwrite the bytes: before it, an instruction must have used
// the load's registers, or all lanes must have executed fence_proxy_async.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

constexpr int kMbarrierBytes = 8;

// mbarrier.init: a phase completes after `count` arrivals and the bytes that they expect.
FLASHSMITH_DEVICE void mbarrier_init(shared_address barrier, int count FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::mbarrier_init(pointer(barrier), count, where);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#endif
}

// mbarrier.arrive: releases.
FLASHSMITH_DEVICE void mbarrier_arrive(shared_address barrier FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::mbarrier_arrive(pointer(barrier), where);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// mapa and mbarrier.arrive.shared::cluster: arrives at the barrier at the same offset in the block
// of this rank, which may be this block. The arrival tells that loads from shared memory have
// finished, and that holds once their registers have been used: .release.cluster would flush writes
// as well, with a MEMBAR.ALL.GPU each time (-25% in the forward kernel).
FLASHSMITH_DEVICE void mbarrier_arrive_remote(shared_address barrier,
                                              int rank FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::mbarrier_arrive_remote(pointer(barrier), rank, where);
#else
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
#endif
}

// mbarrier.arrive.expect_tx: arrives, and makes the phase wait for `bytes` more bytes of bulk
// copies.
FLASHSMITH_DEVICE void mbarrier_arrive_expect_tx(shared_address barrier,
                                                 int bytes FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::mbarrier_arrive_expect_tx(pointer(barrier), bytes, where);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

// mbarrier.try_wait.parity: waits until the phase of this parity, 0 or 1, has completed; acquires.
// Phases count from 0, and the one before the first counts as completed, with parity 1.
FLASHSMITH_DEVICE void mbarrier_wait_parity(shared_address barrier,
                                            int parity FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::mbarrier_wait_parity(pointer(barrier), parity, where);
#else
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "TRY:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra TRY;\n"
      "DONE:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace flashsmith::ptx
