// Plain loads and stores. PTX ISA, Data Movement: ld, st.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// The data of one thread's 16-byte access.
struct Chunk {
  uint32_t word[4];
};

// ld.global.nc.v4.b32: the data must be read-only while the kernel runs.
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

// The same load if `active`; else zeros, without reading memory.
FLASHSMITH_DEVICE Chunk load_global_16_or_zero(const void *source, bool active) {
#ifdef FLASHSMITH_EMULATOR
  Chunk chunk{};
  emulator::load_global(&chunk, source, sizeof(Chunk), active);
  return chunk;
#else
  return active ? load_global_16(source) : Chunk{};
#endif
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

// The same store if `active`.
FLASHSMITH_DEVICE void store_global_16_if(bool active, void *destination, const Chunk &chunk) {
#ifdef FLASHSMITH_EMULATOR
  emulator::store_global(destination, &chunk, sizeof(Chunk), active);
#else
  if (active) store_global_16(destination, chunk);
#endif
}

// ld.shared.v4.b32. The chunk is a reference, so that the emulator recognises its registers when an
// instruction uses them.
FLASHSMITH_DEVICE void load_shared_16(Chunk &chunk, shared_address source) {
#ifdef FLASHSMITH_EMULATOR
  emulator::load_shared(&chunk, pointer(source), sizeof(Chunk));
#else
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.word[0]), "=r"(chunk.word[1]), "=r"(chunk.word[2]), "=r"(chunk.word[3])
               : "r"(source)
               : "memory");
#endif
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

// ld.shared.b32
FLASHSMITH_DEVICE uint32_t load_shared_4(shared_address source) {
  uint32_t word;
#ifdef FLASHSMITH_EMULATOR
  emulator::load_shared(&word, pointer(source), sizeof(word));
#else
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(source) : "memory");
#endif
  return word;
}

// Whether the target has an instruction that adds four numbers to memory at a time.
#if defined(FLASHSMITH_EMULATOR) || __CUDA_ARCH__ >= 900
constexpr bool kHasWideAdds = true;
#else
constexpr bool kHasWideAdds = false;
#endif

// red.relaxed.gpu.global.add.f32. PTX ISA, Parallel Synchronization and Communication Instructions:
// red.
FLASHSMITH_DEVICE void add_global_4(float *destination, float value) {
#ifdef FLASHSMITH_EMULATOR
  emulator::add_global(destination, &value, 1);
#else
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(destination), "f"(value)
               : "memory");
#endif
}

// red.relaxed.gpu.global.add.v4.f32 (sm_90): adds four numbers in 16 bytes; each addition is atomic
// by itself.
FLASHSMITH_DEVICE void add_global_16(float *destination, const float (&values)[4]) {
#ifdef FLASHSMITH_EMULATOR
  emulator::add_global(destination, values, 4);
#else
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(destination),
               "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
#endif
}

// ---- instructions of one thread, where the lanes of a warp diverge ----

// ld.shared.b32
FLASHSMITH_DEVICE uint32_t thread_load_shared_4(shared_address source) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::thread_load_shared(pointer(source));
#else
  return load_shared_4(source);
#endif
}

// st.shared.b32
FLASHSMITH_DEVICE void thread_store_shared_4(shared_address destination, uint32_t word) {
#ifdef FLASHSMITH_EMULATOR
  emulator::thread_store_shared(pointer(destination), word);
#else
  store_shared_4(destination, word);
#endif
}

// ld.global.nc: loads a word, half a word or a byte, which must be read-only while the kernel runs.
template <typename T>
FLASHSMITH_DEVICE T thread_load_global(const T *source) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4,
                "the load is of 1, 2 or 4 bytes");
#ifdef FLASHSMITH_EMULATOR
  T value;
  emulator::thread_load_global(&value, source, sizeof(T));
  return value;
#else
  return __ldg(source);
#endif
}

// st.global.b32
FLASHSMITH_DEVICE void thread_store_global_4(void *destination, uint32_t word) {
#ifdef FLASHSMITH_EMULATOR
  emulator::thread_store_global(destination, &word, sizeof(word));
#else
  asm volatile("st.global.b32 [%0], %1;" ::"l"(destination), "r"(word) : "memory");
#endif
}

// st.global.v2.b32
FLASHSMITH_DEVICE void thread_store_global_8(void *destination, uint32_t first, uint32_t second) {
#ifdef FLASHSMITH_EMULATOR
  const uint32_t words[] = {first, second};
  emulator::thread_store_global(destination, words, sizeof(words));
#else
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(destination), "r"(first), "r"(second)
               : "memory");
#endif
}

// st.global.v4.b32
FLASHSMITH_DEVICE void thread_store_global_16(void *destination, const Chunk &chunk) {
#ifdef FLASHSMITH_EMULATOR
  emulator::thread_store_global(destination, &chunk, sizeof(Chunk));
#else
  store_global_16(destination, chunk);
#endif
}

// atom.relaxed.gpu.global.add.u32: returns the value before.
FLASHSMITH_DEVICE uint32_t thread_atomic_add(uint32_t *destination, uint32_t value) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::thread_atomic_add(destination, value);
#else
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(destination), "r"(value)
               : "memory");
  return before;
#endif
}

// ---- words of global memory that order the accesses of thread blocks ----

// st.release.gpu: a thread that reads this value sees all writes of this thread, including bulk
// copies that it has waited for.
FLASHSMITH_DEVICE void release_global(uint32_t *word, uint32_t value FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::release_global(word, value, where);
#else
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#endif
}

// ld.acquire.gpu in a loop, until the word has this value. It may be written only by a thread that
// proceeds whether or not this one does.
FLASHSMITH_DEVICE void wait_global(const uint32_t *word, uint32_t value FLASHSMITH_LAST_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::wait_global(word, value, where);
#else
  uint32_t found;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(word) : "memory");
  } while (found != value);
#endif
}

}  // namespace flashsmith::ptx
