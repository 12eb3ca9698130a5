// Shared code of the kernels that break a rule of the sm_90 instructions.
#pragma once

#include "cases.h"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/named_barrier.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/ptx/wgmma.cuh"

namespace cases {

struct Sm90Case {
  const char *name;
  void (*kernel)();
  unsigned threads = 128, cluster = 1, blocks = cluster;
  bool overlaps = false;  // the launch before
};
using Sm90Cases = std::vector<Sm90Case>;

// The kernels of each file; a kernel named clean_* breaks no rule.
Sm90Cases copy_cases();
Sm90Cases load_cases();
Sm90Cases sum_cases();
Sm90Cases order_cases();
Sm90Cases launch_cases();
Sm90Cases wgmma_cases();
Sm90Cases cluster_cases();

namespace sm90 {

using namespace flashsmith;
using namespace flashsmith::ptx;
using ptx::cluster_rank, ptx::elect_one, ptx::shared_memory,
    ptx::thread_index;  // not the emulator's

// Boxes of 64 elements by 8 rows: 1024 bytes.
constexpr int kColumns = 64, kRows = 64, kBoxRows = 8, kBoxBytes = kColumns * kBoxRows * 2;
constexpr int kSharedBytes = 16 << 10;

inline struct Tensors {
  alignas(16) uint16_t input[kRows * kColumns] = {};
  alignas(16) uint16_t output[kRows * kColumns] = {};
} tensors;

inline TensorMap map_of(uint16_t *base) {
  return {
      base, 2, 2, {kColumns, kRows}, {2, kColumns * 2}, {kColumns, kBoxRows}, Swizzle::bytes_128};
}
inline const TensorMap input = map_of(tensors.input), output = map_of(tensors.output);

inline int warp() { return thread_index() / 32; }
inline int lane() { return thread_index() % 32; }
inline shared_address barrier(int i) { return shared_memory() + i * kMbarrierBytes; }
inline shared_address tile(int i) { return shared_memory() + (i + 1) * kBoxBytes; }
inline shared_address slot(int i) { return tile(0) + thread_index() % 64 * 16 + i * kBoxBytes; }

inline void start(int barriers, int count = 1) {
  if (thread_index() == 0) {
    for (int i = 0; i < barriers; ++i) mbarrier_init(barrier(i), count);
    fence_mbarrier_init();
  }
  barrier_sync();
}
inline void load(int to, int over) {
  mbarrier_arrive_expect_tx(barrier(over), kBoxBytes);
  tma_load(tile(to), input, barrier(over), 0, 0);
}
inline Chunk read_16(shared_address at) {
  Chunk chunk;
  load_shared_16(chunk, at);
  return chunk;
}
inline void fill() {  // both tiles, by 128 threads
  store_shared_16(tile(0) + thread_index() * 16, {});
}
inline void store_box() {
  tma_store(output, tile(0), 0, 0);
  tma_store_commit_group();
}

inline void fill_and_fence() {
  fill();
  fence_proxy_async();
  barrier_sync();
}

}  // namespace sm90

}  // namespace cases
