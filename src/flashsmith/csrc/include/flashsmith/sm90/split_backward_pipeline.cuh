// The mbarriers of thread blocks of the split backward, by the data that they guard.
#pragma once

#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/sm90/pipeline.cuh"
#include "flashsmith/sm90/split_backward_traits.cuh"

namespace flashsmith::sm90 {

FLASHSMITH_DEVICE ptx::shared_address barrier_at(int first, int index) {
  return ptx::shared_memory() + first + index * ptx::kMbarrierBytes;
}
FLASHSMITH_DEVICE BufferBarriers barriers_at(int first, int pair) {
  return {barrier_at(first, 2 * pair), barrier_at(first, 2 * pair + 1)};
}
FLASHSMITH_DEVICE void init_barriers(const BufferBarriers &barriers, int full, int empty) {
  ptx::mbarrier_init(barriers.full, full);
  ptx::mbarrier_init(barriers.empty, empty);
}

// Arrives for a warp that has finished with a buffer, or has filled it.
FLASHSMITH_DEVICE void release(ptx::shared_address barrier) {
  if (ptx::thread_index() % kWarpSize == 0) ptx::mbarrier_arrive(barrier);
}

// Arrives for a warp that has finished with a buffer that all producers of the cluster fill.
template <typename Traits>
FLASHSMITH_DEVICE void release_to_cluster(ptx::shared_address barrier) {
  if constexpr (Traits::cluster_size == 1) {
    release(barrier);
  } else {
    const int lane = ptx::thread_index() % kWarpSize;
    if (lane < Traits::cluster_size) ptx::mbarrier_arrive_remote(barrier, lane);
  }
}

// The barriers of a block that computes dQ.
template <typename Traits>
struct dQBarriers {
  using Memory = dQMemory<Traits>;

  static FLASHSMITH_DEVICE BufferBarriers K(int stage) {
    return barriers_at(Memory::barriers, stage);
  }
  static FLASHSMITH_DEVICE BufferBarriers V(int stage) {
    return barriers_at(Memory::barriers, Traits::K_stages + stage);
  }
  // Returns the barrier of a warpgroup's rows of Q and dO, which are loaded once.
  static FLASHSMITH_DEVICE ptx::shared_address queries(int warpgroup) {
    return barrier_at(Memory::barriers, 2 * Memory::kPairs + warpgroup);
  }

  // Initialises the barriers. One thread calls this before any other thread touches a barrier.
  static FLASHSMITH_DEVICE void init() {
    for (int i = 0; i < Memory::kPairs; i++) {
      init_barriers(barriers_at(Memory::barriers, i), 1, Traits::n_consumer_warps);
    }
    for (int i = 0; i < Traits::n_warpgroups; i++) ptx::mbarrier_init(queries(i), 1);
    ptx::fence_mbarrier_init();
  }
};

// The barriers of a block that computes dK and dV.
template <typename Traits>
struct dKdVBarriers {
  using Memory = dKdVMemory<Traits>;

  // The following barriers guard a stage of Q with its statistics, and a stage of dO. Full: the
  // producers of the cluster have filled it; empty: all warps of the cluster have finished with it.
  static FLASHSMITH_DEVICE BufferBarriers Q(int stage) {
    return barriers_at(Memory::barriers, stage);
  }
  static FLASHSMITH_DEVICE BufferBarriers dO(int stage) {
    return barriers_at(Memory::barriers, Traits::Q_stages + stage);
  }
  // This guards a buffer of P, from one warpgroup to the other.
  static FLASHSMITH_DEVICE BufferBarriers P(int buffer) {
    return barriers_at(Memory::barriers, kP + buffer);
  }
  // Returns the barrier of K and V, which are loaded once.
  static FLASHSMITH_DEVICE ptx::shared_address keys() {
    return barrier_at(Memory::barriers, 2 * Memory::kPairs);
  }

  // Initialises the barriers. One thread calls this before any other thread touches a barrier.
  static FLASHSMITH_DEVICE void init() {
    constexpr int kReaders = Traits::n_consumer_warps * Traits::cluster_size;
    for (int i = 0; i < kP; i++) init_barriers(barriers_at(Memory::barriers, i), 1, kReaders);
    for (int i = 0; i < kPBuffers; i++) {
      init_barriers(P(i), Traits::n_warpgroup_warps, Traits::n_warpgroup_warps);
    }
    ptx::mbarrier_init(keys(), 1);
    ptx::fence_mbarrier_init();
  }

 private:
  static constexpr int kP = Traits::Q_stages + Traits::dO_stages;
};

}  // namespace flashsmith::sm90
