// The kernel that adds up what splits of work tiles have handed on, in the order of the keys: many
// blocks a work tile, because one would wait long for so much memory.
#pragma once

#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/sm90/decode_output.cuh"

namespace flashsmith::sm90 {

// Grid: merge_blocks(CFG) for each place that SplitTiles has. Block: kMergeThreads.
template <typename Traits>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const __grid_constant__ Sm90DecodeKernelArgs args) {
  constexpr int kRowChunks = Traits::d_head / kSumChunk, kBlocks = Traits::merge_blocks;
  constexpr int kSplitsAtOnce = 8;  // whoever merges waits for memory
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  const int place = ptx::block_index_x() / kBlocks, block = ptx::block_index_x() % kBlocks;
  const KeySplit split = SplitTiles(args.problem.split).get(place);
  if (split.count <= 1) return;
  const SplitSums<Traits> sums(args.problem, split);
  const int i = block * kMergeThreads + ptx::thread_index();
  const int row = i / kRowChunks, chunk = i % kRowChunks;
  if (i / kWarpSize * kWarpSize / kRowChunks >= sums.rows().count()) return;
  sums.store(sums.template merged<kSplitsAtOnce>(row, chunk, 0, 1), row, chunk);
}

}  // namespace flashsmith::sm90
