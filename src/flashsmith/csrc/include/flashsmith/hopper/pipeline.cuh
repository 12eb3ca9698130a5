// The block's mbarriers, by what they guard, and positions in rings of buffers.
#pragma once

#include "flashsmith/hopper/static_kernel_configuration.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"

namespace flashsmith {

// The two barriers of a buffer. `full`: the producer has filled it, or the producers of the cluster
// have. `empty`: every warp that reads it has done with it; of K and V, in all blocks of the
// cluster, because each producer fills its share of the buffer in all of them.
struct BufferBarriers {
  ptx::shared_address full, empty;
};

// Which buffer of a ring is next, and the parity of the round.
template <int kBuffers>
struct RingPosition {
  int buffer = 0, parity = 0;

  FLASHSMITH_DEVICE void advance() {
    if (++buffer == kBuffers) {
      buffer = 0;
      parity ^= 1;
    }
  }
};

constexpr int kQueueEntries = 2;

template <typename Kernel>
struct Barriers {
  // Of a warpgroup's rows.
  static FLASHSMITH_DEVICE BufferBarriers Q(int warpgroup) { return pair(warpgroup); }
  static FLASHSMITH_DEVICE BufferBarriers K(int stage) {
    return pair(Kernel::n_warpgroups + stage);
  }
  static FLASHSMITH_DEVICE BufferBarriers V(int stage) {
    return pair(Kernel::n_warpgroups + Kernel::n_stages + stage);
  }

  // An entry of the queue is full. That it is empty again needs no barrier: before the producer
  // writes it once more it waits for Q's buffer, which warps free after they have read the entry.
  static FLASHSMITH_DEVICE ptx::shared_address queue(int entry) { return at(2 * kPairs + entry); }

  // By one thread, before any other touches a barrier.
  static FLASHSMITH_DEVICE void init() {
    for (int i = 0; i < kPairs; i++) {
      ptx::mbarrier_init(pair(i).full, 1);
      const int n_warps = i < Kernel::n_warpgroups
                              ? kWarpgroupSize / kWarpSize
                              : Kernel::n_consumer_warps * Kernel::cluster_size;
      ptx::mbarrier_init(pair(i).empty, n_warps);
    }
    if constexpr (Kernel::config.dynamic_queue) {
      for (int i = 0; i < kQueueEntries; i++) ptx::mbarrier_init(queue(i), 1);
    }
    ptx::fence_mbarrier_init();
  }

 private:
  static constexpr int kPairs = Kernel::n_warpgroups + 2 * Kernel::n_stages;
  static_assert(Kernel::n_barriers == 2 * kPairs + kQueueEntries, "each barrier has its place");

  static FLASHSMITH_DEVICE ptx::shared_address at(int index) {
    return ptx::shared_memory() + Kernel::barriers_offset + index * ptx::kMbarrierBytes;
  }
  static FLASHSMITH_DEVICE BufferBarriers pair(int index) {
    return {at(2 * index), at(2 * index + 1)};
  }
};

}  // namespace flashsmith
