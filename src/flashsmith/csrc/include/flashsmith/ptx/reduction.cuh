// Bulk copies of contiguous bytes, and bulk additions to global memory. PTX ISA, Data Movement and
// Conversion Instructions: cp.async.bulk, cp.reduce.async.bulk. All of these are instructions of
// single threads; addresses and sizes are multiples of 16 bytes.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// cp.async.bulk: copies the bytes at `source` to `destination`, and counts them towards the
// barrier's phase.
FLASHSMITH_DEVICE void bulk_load(shared_address destination, const void *source, int bytes,
                                 shared_address barrier) {
#ifdef FLASHSMITH_EMULATOR
  emulator::bulk_load(pointer(destination), source, bytes, pointer(barrier));
#else
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

// cp.async.bulk: copies the bytes at `source` to `destination`, in a group of the thread like a
// tma_store (tma.cuh).
FLASHSMITH_DEVICE void bulk_store(void *destination, shared_address source, int bytes) {
#ifdef FLASHSMITH_EMULATOR
  emulator::bulk_store(destination, pointer(source), bytes);
#else
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination),
               "r"(source), "r"(bytes)
               : "memory");
#endif
}

// cp.reduce.async.bulk, add: adds each FP32 number at `source` to the one at `destination`; each
// addition is atomic by itself. It belongs to a group like a bulk_store.
FLASHSMITH_DEVICE void bulk_add(float *destination, shared_address source, int bytes) {
#ifdef FLASHSMITH_EMULATOR
  emulator::bulk_add(destination, pointer(source), bytes);
#else
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   destination),
               "r"(source), "r"(bytes)
               : "memory");
#endif
}

}  // namespace flashsmith::ptx
