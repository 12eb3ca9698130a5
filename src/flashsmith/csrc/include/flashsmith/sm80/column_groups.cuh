// Warps that share rows of gradients: each has every column_groups-th pair of n tiles of their
// columns. Its first pair adds a constant of the warp to what a lane addresses anyway.
#pragma once

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm80/named_barrier.cuh"
#include "flashsmith/sm80/smem_tile.cuh"

namespace flashsmith::sm80 {

// Returns the column group of this warp: neighbouring warps share rows.
template <typename Traits>
FLASHSMITH_DEVICE int column_group() {
  if constexpr (Traits::column_groups == 1) return 0;
  return ptx::recomputed(ptx::thread_index()) / kWarpSize % Traits::column_groups;
}

// Waits for the warps that share this warp's rows.
template <typename Traits>
FLASHSMITH_DEVICE void sync_column_groups() {
  if constexpr (Traits::column_groups == 1) {
    ptx::warp_sync();
  } else {
    constexpr int kThreads = Traits::column_groups * kWarpSize;
    const int group = ptx::recomputed(ptx::thread_index()) / kThreads;
    ptx::named_barrier_sync(ptx::named_barrier_of(NamedBarrier::row_sharers, group), kThreads);
  }
}

// Writes 16 rows of this warp's columns, scaled and in the input type, to the tile's rows from
// `first` on.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void store_gradients_to_tile(const float (&elements)[kElements], float factor,
                                               ptx::shared_address tile, int first) {
  const int lane = ptx::thread_index() % kWarpSize, word = lane % kLanesPerRow;
#pragma unroll
  for (int i = 0; i < kElements; i += 2) {
    const int row = first + first_row(lane) + half_of(i) * kRowsPerHalf;
    const int pair = i / 8 * Traits::column_groups + column_group<Traits>();
    const ptx::shared_address chunk = tile + SmemTile<Traits>::offset(row, 2 * pair + i / 4 % 2);
    ptx::store_shared_4(chunk + word * 4, ptx::pack<typename Traits::value_t>(
                                              elements[i] * factor, elements[i + 1] * factor));
  }
}

}  // namespace flashsmith::sm80
