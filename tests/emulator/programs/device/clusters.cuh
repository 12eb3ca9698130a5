// Clusters of two thread blocks: each loads half of a tile for both, and both tell it when they
// have read it.
#pragma once

#include "device/harness.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/tma.cuh"

namespace wrappers::clusters {

constexpr int kCluster = 2, kBlocks = 4, kRounds = 20, kTile = 1024;
constexpr int kColumns = 64, kBoxRows = 8, kBoxBytes = kBoxRows * kColumns * 2;
constexpr int kWords = kCluster * kBoxBytes / 4, kRows = kRounds * kCluster * kBoxRows;

// sums (block, lane): the words i of each round's tile with i % 32 == lane, times the round; ranks
// (block).
template <CacheHint kHint>
struct MulticastRing {
  static constexpr int kThreads = 64;

  TensorMap map;
  uint32_t *sums, *ranks;

  FLASHSMITH_DEVICE void operator()() const {
    const shared_address full = shared_memory(), empty = full + kMbarrierBytes;
    if (thread_index() == 0) {
      mbarrier_init(full, 1);
      mbarrier_init(empty, kCluster);
      fence_mbarrier_init();
    }
    cluster_sync();
    if (warp_index() == 0) {
      if (thread_index() == 0) produce(full, empty);
    } else {
      consume(full, empty);
    }
  }

 private:
  FLASHSMITH_DEVICE void produce(shared_address full, shared_address empty) const {
    const int rank = cluster_rank();
    ranks[block_index_x()] = static_cast<uint32_t>(rank);
    for (int round = 0; round < kRounds; ++round) {
      mbarrier_wait_parity(empty, round % 2 ^ 1);
      mbarrier_arrive_expect_tx(full, kCluster * kBoxBytes);
      tma_load_multicast<kHint>(shared_memory() + kTile + rank * kBoxBytes, map, full,
                                (1 << kCluster) - 1, 0, (round * kCluster + rank) * kBoxRows);
    }
    // The other block arrives here once more, so this block must not end before.
    mbarrier_wait_parity(empty, kRounds % 2 ^ 1);
  }

  FLASHSMITH_DEVICE void consume(shared_address full, shared_address empty) const {
    const int lane = thread_index() % 32;
    uint32_t sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      mbarrier_wait_parity(full, round % 2);
      for (int i = lane; i < kWords; i += 32) {
        sum += thread_load_shared_4(shared_memory() + kTile + i * 4) * (round + 1);
      }
      warp_sync();
      if (lane < kCluster) mbarrier_arrive_remote(empty, lane);
    }
    sums[block_index_x() * 32 + lane] = sum;
  }
};

template <CacheHint kHint>
void check_ring(Results &results) {
  Random random(3);
  Buffer<uint16_t> tensor(kRows * kColumns);
  for (auto &x : tensor) x = static_cast<uint16_t>(random.bits());
  Buffer<uint32_t> sums(kBlocks * 32), ranks(kBlocks);
  const TensorMap map = make_map(
      tensor.data(), {{kColumns, kRows}, {1, kColumns}, {kColumns, kBoxRows}, Swizzle::none});
  run(MulticastRing<kHint>{map, sums.data(), ranks.data()},
      {.shared_bytes = kTile + kWords * 4, .blocks = kBlocks, .cluster = kCluster}, tensor, sums,
      ranks);
  uint32_t expected[32] = {};
  for (int i = 0; i < kRounds * kWords; ++i) {
    uint32_t word;
    std::memcpy(&word, &tensor[static_cast<size_t>(i) * 2], sizeof word);
    expected[i % 32] += word * static_cast<uint32_t>(i / kWords + 1);
  }
  for (int block = 0; block < kBlocks; ++block) {
    const auto at = static_cast<size_t>(block);
    results.check(ranks[at] == static_cast<uint32_t>(block % kCluster), "rank of block %d", block);
    results.check(std::memcmp(&sums[at * 32], expected, sizeof expected) == 0, "sums of block %d",
                  block);
  }
}

inline void check(Results &results) {
  for (int i = 0; i < 5; ++i) {
    check_ring<CacheHint::none>(results);
    check_ring<CacheHint::evict_last>(results);
  }
}

}  // namespace wrappers::clusters
