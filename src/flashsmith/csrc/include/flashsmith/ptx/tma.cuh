// Bulk tensor copies (TMA). PTX ISA, Data Movement and Conversion Instructions: Tensor Copy,
// cp.async.bulk.tensor. All of these are instructions of single threads.
#pragma once

#include "flashsmith/ptx/platform.cuh"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith::ptx {

// The time that L2 keeps the bytes: these are the policies that createpolicy.fractional makes for
// all bytes.
enum class CacheHint : uint64_t {
  none = 0,
  evict_first = 0x12F0000000000000,
  evict_last = 0x14F0000000000000,
};

#ifndef FLASHSMITH_EMULATOR
#define FLASHSMITH_TMA_LOAD(RANK, COORDINATES, MODIFIERS, OPERANDS, ...)                \
  asm volatile("cp.async.bulk.tensor." RANK                                             \
               ".shared::cluster.global.mbarrier::complete_tx::bytes" MODIFIERS         \
               " [%0], [%1, {" COORDINATES "}], [%2]" OPERANDS ";" ::"r"(destination),  \
               "l"(&map), "r"(barrier), "l"(static_cast<uint64_t>(kHint)), "h"(blocks), \
               __VA_ARGS__                                                              \
               : "memory")
#define FLASHSMITH_TMA_LOAD_CASES(RANK, COORDINATES, ...)                                    \
  if constexpr (!kMulticast && kHint == CacheHint::none) {                                   \
    FLASHSMITH_TMA_LOAD(RANK, COORDINATES, "", "", __VA_ARGS__);                             \
  } else if constexpr (!kMulticast) {                                                        \
    FLASHSMITH_TMA_LOAD(RANK, COORDINATES, ".L2::cache_hint", ", %3", __VA_ARGS__);          \
  } else if constexpr (kHint == CacheHint::none) {                                           \
    FLASHSMITH_TMA_LOAD(RANK, COORDINATES, ".multicast::cluster", ", %4", __VA_ARGS__);      \
  } else {                                                                                   \
    FLASHSMITH_TMA_LOAD(RANK, COORDINATES, ".multicast::cluster.L2::cache_hint", ", %4, %3", \
                        __VA_ARGS__);                                                        \
  }
#define FLASHSMITH_TMA_STORE(RANK, COORDINATES, ...)                                            \
  asm volatile("cp.async.bulk.tensor." RANK ".global.shared::cta.bulk_group [%0, {" COORDINATES \
               "}], [%1];" ::"l"(&map),                                                         \
               "r"(source), __VA_ARGS__                                                         \
               : "memory")

template <CacheHint kHint, bool kMulticast, int kRank>
FLASHSMITH_DEVICE void issue_tma_load(shared_address destination, const TensorMap &map,
                                      shared_address barrier, uint16_t blocks,
                                      const int (&c)[kRank]) {
  if constexpr (kRank == 2) {
    FLASHSMITH_TMA_LOAD_CASES("2d", "%5, %6", "r"(c[0]), "r"(c[1]))
  } else if constexpr (kRank == 3) {
    FLASHSMITH_TMA_LOAD_CASES("3d", "%5, %6, %7", "r"(c[0]), "r"(c[1]), "r"(c[2]))
  } else if constexpr (kRank == 4) {
    FLASHSMITH_TMA_LOAD_CASES("4d", "%5, %6, %7, %8", "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]))
  } else {
    FLASHSMITH_TMA_LOAD_CASES("5d", "%5, %6, %7, %8, %9", "r"(c[0]), "r"(c[1]), "r"(c[2]),
                              "r"(c[3]), "r"(c[4]))
  }
}
#endif

// Copies the box at `coordinates` (two to five, in elements, the contiguous dimension first) to
// `destination`, 128-byte aligned, and counts its bytes towards the barrier's phase. Elements
// outside the tensor become zeros, and count.
template <CacheHint kHint = CacheHint::none, typename... Coordinates>
FLASHSMITH_DEVICE void tma_load(shared_address destination, const TensorMap &map,
                                shared_address barrier, Coordinates... coordinates) {
  constexpr int kRank = sizeof...(Coordinates);
  static_assert(kRank >= 2 && kRank <= 5, "tensor maps here have two to five dimensions");
  const int c[] = {coordinates...};
#ifdef FLASHSMITH_EMULATOR
  emulator::tma_load(pointer(destination), map, pointer(barrier), c, kRank);
#else
  issue_tma_load<kHint, false>(destination, map, barrier, uint16_t{0}, c);
#endif
}

// Copies the box to the same offset in each block of the cluster whose rank is a bit of `blocks`.
// The barrier at the same offset in that block counts it. L2 is read once.
template <CacheHint kHint = CacheHint::none, typename... Coordinates>
FLASHSMITH_DEVICE void tma_load_multicast(shared_address destination, const TensorMap &map,
                                          shared_address barrier, uint16_t blocks,
                                          Coordinates... coordinates) {
  constexpr int kRank = sizeof...(Coordinates);
  static_assert(kRank >= 2 && kRank <= 5, "tensor maps here have two to five dimensions");
  const int c[] = {coordinates...};
#ifdef FLASHSMITH_EMULATOR
  emulator::tma_load_multicast(pointer(destination), map, pointer(barrier), blocks, c, kRank);
#else
  issue_tma_load<kHint, true>(destination, map, barrier, blocks, c);
#endif
}

// Copies the tile at `source`, 128-byte aligned, to the part of the box at `coordinates` that lies
// in the tensor; the box may end beyond the tensor, but not begin before it.
template <typename... Coordinates>
FLASHSMITH_DEVICE void tma_store(const TensorMap &map, shared_address source,
                                 Coordinates... coordinates) {
  constexpr int kRank = sizeof...(Coordinates);
  static_assert(kRank >= 2 && kRank <= 5, "tensor maps here have two to five dimensions");
  const int c[] = {coordinates...};
#ifdef FLASHSMITH_EMULATOR
  emulator::tma_store(map, pointer(source), c, kRank);
#else
  if constexpr (kRank == 2) {
    FLASHSMITH_TMA_STORE("2d", "%2, %3", "r"(c[0]), "r"(c[1]));
  } else if constexpr (kRank == 3) {
    FLASHSMITH_TMA_STORE("3d", "%2, %3, %4", "r"(c[0]), "r"(c[1]), "r"(c[2]));
  } else if constexpr (kRank == 4) {
    FLASHSMITH_TMA_STORE("4d", "%2, %3, %4, %5", "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  } else {
    FLASHSMITH_TMA_STORE("5d", "%2, %3, %4, %5, %6", "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]),
                         "r"(c[4]));
  }
#endif
}

#ifndef FLASHSMITH_EMULATOR
#undef FLASHSMITH_TMA_LOAD
#undef FLASHSMITH_TMA_LOAD_CASES
#undef FLASHSMITH_TMA_STORE
#endif

// cp.async.bulk.commit_group: the thread's stores since its last commit become one group.
FLASHSMITH_DEVICE void tma_store_commit_group(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::tma_store_commit_group(where);
#else
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// cp.async.bulk.wait_group: waits until all of the thread's groups but the newest kPending have
// been written.
template <int kPending>
FLASHSMITH_DEVICE void tma_store_wait_group(FLASHSMITH_CALL_SITE) {
  static_assert(kPending >= 0, "the number of groups left in flight is not negative");
#ifdef FLASHSMITH_EMULATOR
  emulator::tma_store_wait_group(kPending, where);
#else
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// cp.async.bulk.wait_group.read: waits until they have been read from shared memory, which may then
// be reused.
template <int kPending>
FLASHSMITH_DEVICE void tma_store_wait_group_read(FLASHSMITH_CALL_SITE) {
  static_assert(kPending >= 0, "the number of groups left in flight is not negative");
#ifdef FLASHSMITH_EMULATOR
  emulator::tma_store_wait_group_read(kPending, where);
#else
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace flashsmith::ptx
