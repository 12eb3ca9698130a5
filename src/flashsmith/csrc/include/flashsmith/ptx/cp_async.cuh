// Asynchronous copies from global to shared memory. PTX ISA, Data Movement: cp.async (non-bulk).
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// cp.async.cg: copies 16 bytes past L1; with the hint L2 fetches the whole 128-byte line.
FLASHSMITH_DEVICE void cp_async_16(shared_address destination, const void *source) {
#ifdef FLASHSMITH_EMULATOR
  emulator::cp_async_16(pointer(destination), source);
#else
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
#endif
}

// The same copy if `active`; else 16 zero bytes, without reading the source: its size is 0.
FLASHSMITH_DEVICE void cp_async_16_or_zero(shared_address destination, const void *source,
                                           bool active) {
#ifdef FLASHSMITH_EMULATOR
  emulator::cp_async_16(pointer(destination), source, active);
#else
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(source), "r"(active ? 16 : 0)
               : "memory");
#endif
}

// cp.async.ca: copies 4 bytes if `active`; else zeros, without reading the source.
FLASHSMITH_DEVICE void cp_async_4_or_zero(shared_address destination, const void *source,
                                          bool active) {
#ifdef FLASHSMITH_EMULATOR
  emulator::cp_async_4(pointer(destination), source, active);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(destination), "l"(source),
               "r"(active ? 4 : 0)
               : "memory");
#endif
}

// cp.async.commit_group: the copies issued since the last commit become one group.
FLASHSMITH_DEVICE void cp_async_commit_group() {
#ifdef FLASHSMITH_EMULATOR
  emulator::cp_async_commit_group();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// cp.async.wait_group: waits until all of this thread's groups but the newest kPending have
// arrived.
template <int kPending>
FLASHSMITH_DEVICE void cp_async_wait_group(FLASHSMITH_CALL_SITE) {
  static_assert(kPending >= 0, "the number of groups left in flight is not negative");
#ifdef FLASHSMITH_EMULATOR
  emulator::cp_async_wait_group(kPending, where);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace flashsmith::ptx
