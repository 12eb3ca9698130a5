// Execution barriers among some of the block's warps. PTX ISA, Parallel Synchronization and
// Communication Instructions: bar. They have numbers 1 to 15; barrier_sync uses number 0.
#pragma once

#include <type_traits>

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// Returns the barrier of a group of threads. A family enumerates its barriers; if each of several
// groups has one, the enumerator is the barrier of group 0, and the other groups' follow it.
template <typename NamedBarrier>
  requires std::is_enum_v<NamedBarrier>
FLASHSMITH_DEVICE int named_barrier_of(NamedBarrier first, int group) {
  return static_cast<int>(first) + group;
}

// bar.sync: waits until `threads` threads, in whole warps, have arrived, and orders their accesses.
FLASHSMITH_DEVICE void named_barrier_sync(int id, int threads FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::named_barrier_sync(id, threads, where);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// bar.arrive: counts as an arrival among the `threads`, but does not wait.
FLASHSMITH_DEVICE void named_barrier_arrive(int id, int threads FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::named_barrier_arrive(id, threads, where);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// Returns the index of a barrier, but not before `known` has been computed: ptxas would move an
// arrival before arithmetic that it does not depend on. No instruction produces the NaN that
// `known` is compared with.
FLASHSMITH_DEVICE int when_known([[maybe_unused]] float known, int index) {
#ifndef FLASHSMITH_EMULATOR
  asm volatile(
      "{\n.reg .pred never;\nsetp.eq.b32 never, %1, 0x7f800001;\n@never add.s32 %0, %0, 1;\n}\n"
      : "+r"(index)
      : "r"(__float_as_uint(known)));
#endif
  return index;
}

}  // namespace flashsmith::ptx
