// The combine kernel adds the partial results of work tiles in the order of the keys. A work tile
// gets many blocks, because a single one would wait long to read that much memory.
#pragma once

#include "flashsmith/attention/partial_results.cuh"
#include "flashsmith/attention/split_tiles.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"

namespace flashsmith {

// Grid: (work tiles, blocks for the rows of a work tile). Block: kCombineThreads, in
// SplitArgs::combine_groups groups (ThreadGroups). Dynamic shared memory: ThreadPartials of all
// threads.
template <typename Traits, typename Args>
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const __grid_constant__ Args args) {
  constexpr int kRowChunks = Traits::d_head / kPartialChunk, kGroupsAtOnce = 4;
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  const KeySplit split = SplitTiles(args.problem.split).first_of(ptx::block_index_x());
  if (split.count <= 1) return;
  const PartialResults<Traits> sums(args.problem, split);
  const int groups = args.problem.split.combine_groups;
  const ThreadGroups threads{groups, kCombineThreads / groups, ptx::thread_index(),
                             ThreadPartials(ptx::shared_memory())};
  const int i = ptx::block_index_y() * threads.of_group + threads.place();
  const int row = i / kRowChunks, chunk = i % kRowChunks;
  // Whole warps take part; some of their lanes may be beyond the last row.
  const bool here = i / kWarpSize * kWarpSize < sums.rows().count() * kRowChunks;
  const PartialResult own = sums.template combined_by<kGroupsAtOnce>(threads, row, chunk, here,
                                                                     [] { ptx::barrier_sync(); });
  if (here && threads.group() == 0) {
    sums.store(own, row, chunk, value_scale<Traits>(args, split));
  }
}

}  // namespace flashsmith
