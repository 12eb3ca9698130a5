// What thread blocks hand to one another through global memory while a kernel runs.
// PTX ISA, Memory Consistency Model: release and acquire; Data Movement: ld.
#pragma once

#include "flashsmith/ptx/memory.cuh"

namespace flashsmith::ptx {

// atom.acq_rel.gpu.global.add.u32: returns the value before. What the thread has written, or knows
// others of its block to have written (by a barrier), is visible to whoever finds the sum, and to
// those who know of that by a barrier.
FLASHSMITH_DEVICE uint32_t thread_arrive_global(uint32_t *counter) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::thread_atomic_add(counter, 1);
#else
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
#endif
}

// ld.global.cg.b32: past L1, where an older value may be.
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

// ld.global.cg.v2.f32: likewise.
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

// ld.global.cg.v4.b32: likewise.
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

}  // namespace flashsmith::ptx
