// Exchange of data between thread blocks through global memory while a kernel runs. PTX ISA, Memory
// Consistency Model: release and acquire; Data Movement: ld.
#pragma once

#include "flashsmith/ptx/memory.cuh"

namespace flashsmith::ptx {

// atom.acq_rel.gpu.global.add.u32: returns the value before. Writes of the thread, and writes of
// its block that it has synchronised with by a barrier, are visible to a thread that reads the sum,
// and to threads that synchronise with that one by a barrier.
FLASHSMITH_DEVICE uint32_t thread_arrive_global(uint32_t *counter FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::thread_arrive_global(counter, where);
#else
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
#endif
}

// ld.global.cg.b32: loads past L1, which may hold an older value.
FLASHSMITH_DEVICE uint32_t thread_load_global_cg_4(const void *source) {
#ifdef FLASHSMITH_EMULATOR
  uint32_t word;
  emulator::thread_load_global(&word, source, sizeof(word));
  return word;
#else
  uint32_t word;
  asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(word) : "l"(source) : "memory");
  return word;
#endif
}

// ld.global.cg.v2.f32: loads past L1.
FLASHSMITH_DEVICE void load_global_cg_8(float &first, float &second, const float *source) {
#ifdef FLASHSMITH_EMULATOR
  float numbers[2];
  emulator::load_global(numbers, source, sizeof(numbers));
  first = numbers[0];
  second = numbers[1];
#else
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
               : "=f"(first), "=f"(second)
               : "l"(source)
               : "memory");
#endif
}

// ld.global.cg.v4.b32: loads past L1.
FLASHSMITH_DEVICE Chunk load_global_cg_16(const void *source) {
  Chunk chunk;
#ifdef FLASHSMITH_EMULATOR
  emulator::load_global(&chunk, source, sizeof(Chunk));
#else
  asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.word[0]), "=r"(chunk.word[1]), "=r"(chunk.word[2]), "=r"(chunk.word[3])
               : "l"(source)
               : "memory");
#endif
  return chunk;
}

// ld.global.cg.v4.b32, where the lanes of a warp diverge: loads past L1.
FLASHSMITH_DEVICE Chunk thread_load_global_cg_16(const void *source) {
#ifdef FLASHSMITH_EMULATOR
  Chunk chunk;
  emulator::thread_load_global(&chunk, source, sizeof(Chunk));
  return chunk;
#else
  return load_global_cg_16(source);
#endif
}

}  // namespace flashsmith::ptx
