// Plain loads and stores. PTX ISA, Data Movement: ld, st.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// What one thread moves with a 16-byte access.
struct Chunk {
  uint32_t word[4];
};

// ld.global.nc.v4.b32: the data is read-only while the kernel runs.
FLASHSMITH_DEVICE Chunk load_global_16(const void *source) {
  Chunk chunk;
#ifdef FLASHSMITH_EMULATOR
  emulator::load_global(&chunk, source, sizeof(Chunk));
#else
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.word[0]), "=r"(chunk.word[1]), "=r"(chunk.word[2]), "=r"(chunk.word[3])
               : "l"(source));
#endif
  return chunk;
}

// st.global.v4.b32
FLASHSMITH_DEVICE void store_global_16(void *destination, const Chunk &chunk) {
#ifdef FLASHSMITH_EMULATOR
  emulator::store_global(destination, &chunk, sizeof(Chunk));
#else
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(destination), "r"(chunk.word[0]),
               "r"(chunk.word[1]), "r"(chunk.word[2]), "r"(chunk.word[3])
               : "memory");
#endif
}

// ld.shared.v4.b32
FLASHSMITH_DEVICE Chunk load_shared_16(shared_address source) {
  Chunk chunk;
#ifdef FLASHSMITH_EMULATOR
  emulator::load_shared(&chunk, pointer(source), sizeof(Chunk));
#else
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.word[0]), "=r"(chunk.word[1]), "=r"(chunk.word[2]), "=r"(chunk.word[3])
               : "r"(source)
               : "memory");
#endif
  return chunk;
}

// st.shared.v4.b32
FLASHSMITH_DEVICE void store_shared_16(shared_address destination, const Chunk &chunk) {
#ifdef FLASHSMITH_EMULATOR
  emulator::store_shared(pointer(destination), &chunk, sizeof(Chunk));
#else
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(destination), "r"(chunk.word[0]),
               "r"(chunk.word[1]), "r"(chunk.word[2]), "r"(chunk.word[3])
               : "memory");
#endif
}

// st.shared.b32
FLASHSMITH_DEVICE void store_shared_4(shared_address destination, uint32_t word) {
#ifdef FLASHSMITH_EMULATOR
  emulator::store_shared(pointer(destination), &word, sizeof(word));
#else
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(destination), "r"(word) : "memory");
#endif
}

}  // namespace flashsmith::ptx
