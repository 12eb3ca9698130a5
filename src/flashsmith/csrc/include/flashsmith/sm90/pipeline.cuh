// The block's mbarriers, by the data that they guard, and positions in rings of buffers.
#pragma once

#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

// The two barriers of a buffer. `full`: the producer, or the producers of the cluster, have filled
// it. `empty`: every warp that reads it has finished with it; for K and V in all blocks of the
// cluster, because each producer fills its share of the buffer in all of them.
struct BufferBarriers {
  ptx::shared_address full, empty;
};

// The position of a producer or consumer in a ring: the next buffer, and the parity of the round. A
// consumer waits for `full` with its parity, the producer for `empty` with the other parity:
//
//    buffer   0   1   2   0   1   2   0
//    parity   0   0   0   1   1   1   0
//                 ^ consumer  ^ producer: buffer 1 must be empty again
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
// The warps of the producer's warpgroup that transpose FP8 V: all but the one that copies.
constexpr int kTransposingWarps = kWarpgroupSize / kWarpSize - 1;

template <typename Traits>
struct Barriers {
  // Returns the barriers of the buffer with one warpgroup's 64 rows of Q.
  static FLASHSMITH_DEVICE BufferBarriers Q(int warpgroup) { return pair(warpgroup); }
  static FLASHSMITH_DEVICE BufferBarriers K(int stage) {
    return pair(Traits::n_warpgroups + stage);
  }
  static FLASHSMITH_DEVICE BufferBarriers V(int stage) {
    return pair(Traits::n_warpgroups + Traits::n_stages + stage);
  }

  // Returns the barriers of a buffer in which FP8 V arrives; V(stage) then guards transposed V.
  static FLASHSMITH_DEVICE BufferBarriers arriving_V(int stage) {
    return pair(Traits::n_warpgroups + 2 * Traits::n_stages + stage);
  }

  // Returns the barrier that is completed when an entry of the queue is full. No barrier is needed
  // for empty: before the producer writes the entry again it waits for Q's buffer, which warps free
  // after they have read the entry.
  static FLASHSMITH_DEVICE ptx::shared_address queue(int entry) { return at(2 * kPairs + entry); }

  // Initialises the barriers. One thread calls this before any other thread touches a barrier.
  static FLASHSMITH_DEVICE void init() {
    constexpr int kFirstV = Traits::n_warpgroups + Traits::n_stages;
    for (int i = 0; i < kPairs; i++) {
      const bool is_arriving = i >= kFirstV + Traits::n_stages;
      const bool is_transposed = Traits::fp8_values && i >= kFirstV && !is_arriving;
      ptx::mbarrier_init(pair(i).full, is_transposed ? kTransposingWarps : 1);
      const int n_warps = i < Traits::n_warpgroups ? kWarpgroupSize / kWarpSize
                          : is_arriving ? kTransposingWarps
                                        : Traits::n_consumer_warps * Traits::cluster_size;
      ptx::mbarrier_init(pair(i).empty, n_warps);
    }
    if constexpr (Traits::config.dynamic_queue) {
      for (int i = 0; i < kQueueEntries; i++) ptx::mbarrier_init(queue(i), 1);
    }
    ptx::fence_mbarrier_init();
  }

 private:
  static constexpr int kPairs =
      Traits::n_warpgroups + (Traits::fp8_values ? 3 : 2) * Traits::n_stages;
  static_assert(Traits::n_barriers == 2 * kPairs + kQueueEntries,
                "the traits count as many barriers as there are here");

  static FLASHSMITH_DEVICE ptx::shared_address at(int index) {
    return ptx::shared_memory() + Traits::barriers_offset + index * ptx::kMbarrierBytes;
  }
  static FLASHSMITH_DEVICE BufferBarriers pair(int index) {
    return {at(2 * index), at(2 * index + 1)};
  }
};

}  // namespace flashsmith::sm90
