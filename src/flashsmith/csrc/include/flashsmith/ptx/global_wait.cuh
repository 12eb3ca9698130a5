// A word in global memory at which thread blocks wait for each other for a bounded time. PTX ISA,
// Memory Consistency Model: release and acquire.
#pragma once

#include "flashsmith/ptx/memory.cuh"

namespace flashsmith::ptx {

// atom.acq_rel.gpu.global.add.u32: returns the value before. It makes writes visible as
// thread_arrive_global does (global_exchange.cuh).
FLASHSMITH_DEVICE uint32_t thread_add_global(uint32_t *word,
                                             uint32_t amount FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::thread_add_global(word, amount, where);
#else
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(word), "r"(amount)
               : "memory");
  return before;
#endif
}

// atom.acq_rel.gpu.global.cas.b32: returns the value before, which is replaced if it is `expected`.
// It makes writes visible likewise.
FLASHSMITH_DEVICE uint32_t thread_replace_global(uint32_t *word, uint32_t expected,
                                                 uint32_t value FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::thread_replace_global(word, expected, value, where);
#else
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "l"(word), "r"(expected), "r"(value)
               : "memory");
  return before;
#endif
}

// ld.acquire.gpu: returns the value, whose writers' writes are visible from then on. A loop of few
// calls waits for another value than `known`, and must not count on it.
FLASHSMITH_DEVICE uint32_t thread_poll_global(const uint32_t *word,
                                              uint32_t known FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::thread_poll_global(word, known, where);
#else
  uint32_t found;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(word) : "memory");
  return found;
#endif
}

}  // namespace flashsmith::ptx
