// The mbarriers of a thread block of the backward, by the data that they guard.
#pragma once

#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/sm90/backward_traits.cuh"
#include "flashsmith/sm90/pipeline.cuh"
#include "flashsmith/sm90/warpgroup_scheduler.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
struct BackwardBarriers {
  // The following barriers guard a stage of Q with its statistics, and a stage of dO.
  static FLASHSMITH_DEVICE BufferBarriers Q(int stage) { return pair(kQ + stage); }
  static FLASHSMITH_DEVICE BufferBarriers dO(int stage) { return pair(kDO + stage); }
  // This guards dS of a block, unless warpgroups share keys. Full: all warpgroups have written it;
  // empty: the warps that compute dQ have read it.
  static FLASHSMITH_DEVICE BufferBarriers dS(int buffer) { return pair(kDS + buffer); }
  // This guards a warpgroup's dQ. Full: it has been written; empty: the bulk copy that adds it has
  // read it.
  static FLASHSMITH_DEVICE BufferBarriers dQ(int warpgroup) { return pair(kDQ + warpgroup); }
  // This guards the sums of dQ that a warpgroup finishes, in the buffer of its dQ. Full: they have
  // arrived; empty: they have been read.
  static FLASHSMITH_DEVICE BufferBarriers sums(int warpgroup) { return pair(kSums + warpgroup); }
  // This guards K and V of a tile. Full: they have arrived; empty: all products that read them have
  // finished.
  static FLASHSMITH_DEVICE BufferBarriers keys() { return pair(kKeys); }
  // This guards the index of a tile. Full: it has been written; empty: all warps that work on the
  // tile have read it.
  static FLASHSMITH_DEVICE BufferBarriers entry(int entry) { return pair(kEntries + entry); }
  // This is completed when sums that are converted have arrived in a buffer. The warp that reads
  // them loads the next ones.
  static FLASHSMITH_DEVICE ptx::shared_address converted(int buffer) {
    return pair(kConverted + buffer).full;
  }

  // Initialises the barriers. One thread calls this before any other thread touches a barrier.
  static FLASHSMITH_DEVICE void init() {
    for (int i = kQ; i < kDS; i++) init_pair(i, 1, Traits::n_consumer_warps);
    for (int i = kDS; i < kDQ; i++) init_pair(i, Traits::n_consumer_warps, Traits::dQ_warps);
    for (int i = kDQ; i < kSums; i++) init_pair(i, Traits::n_warpgroup_warps, 1);
    for (int i = kSums; i < kKeys; i++) init_pair(i, 1, Traits::n_warpgroup_warps);
    init_pair(kKeys, 1, Traits::n_consumer_warps);
    for (int i = kEntries; i < kConverted; i++) {
      init_pair(i, 1, Traits::n_consumer_warps + Traits::dQ_adders);
    }
    for (int i = kConverted; i < kPairs; i++) init_pair(i, 1, 1);
    ptx::fence_mbarrier_init();
  }

 private:
  static constexpr int kQ = 0, kDO = kQ + Traits::Q_stages, kDS = kDO + Traits::dO_stages;
  static constexpr int kDQ = kDS + n_dS_barriers(Traits::config),
                       kSums = kDQ + Traits::n_warpgroups;
  static constexpr int kKeys = kSums + n_sum_buffers(Traits::config);
  static constexpr int kEntries = kKeys + 1;
  static constexpr int kConverted = kEntries + n_tile_entries(Traits::config);
  static constexpr int kPairs = kConverted + n_converted_buffers(Traits::config);
  static_assert(n_barriers(Traits::config) == 2 * kPairs,
                "the host counts as many barriers as there are here");

  static FLASHSMITH_DEVICE void init_pair(int index, int full, int empty) {
    ptx::mbarrier_init(pair(index).full, full);
    ptx::mbarrier_init(pair(index).empty, empty);
  }
  static FLASHSMITH_DEVICE ptx::shared_address at(int index) {
    return ptx::shared_memory() + Traits::barriers_offset + index * ptx::kMbarrierBytes;
  }
  static FLASHSMITH_DEVICE BufferBarriers pair(int index) {
    return {at(2 * index), at(2 * index + 1)};
  }
};

template <typename Traits>
using BackwardScheduler =
    WarpgroupScheduler<Traits::n_warpgroups,
                       static_cast<PingPongScope>(Traits::config.turns) != PingPongScope::none>;

}  // namespace flashsmith::sm90
