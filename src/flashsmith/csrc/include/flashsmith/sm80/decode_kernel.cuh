// The decode kernels of the sm80 family: few queries a request, over the keys of a KV cache.
//
// All teams of all blocks read K and V at once and wait for memory, not for one another. At the end
// of a split their partial results meet in shared memory and, if a work tile is split, in global
// memory: the last block to arrive, or a separate kernel, combines them in the order of the keys.
#pragma once

#include "flashsmith/attention/cache_append.cuh"
#include "flashsmith/attention/combine_kernel.cuh"
#include "flashsmith/attention/key_parts.cuh"
#include "flashsmith/attention/key_splits.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/sm80/decode_combine.cuh"
#include "flashsmith/sm80/decode_traits.cuh"
#include "flashsmith/sm80/decode_warp.cuh"

namespace flashsmith::sm80 {

// One split for each block: equal splits, or splits of about the same length. Grid: a block for
// each split, or more. Block: threads_per_block(CFG). Dynamic shared memory:
// shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM)
    flash_decode_kernel(const __grid_constant__ DecodeKernelArgs args) {
  ptx::wait_for_launch_before();
  const SplitArgs &schedule = args.problem.split;
  if (schedule.next_begins_early) ptx::let_next_launch_begin();
  KeySplit split;
  const bool has_split = schedule.is_even ? KeySplits<Traits, true>(args.problem).next(split)
                                          : KeyParts<Traits>(args.problem).find(split);
  if (!has_split) return;
  DecodeWarp<Traits>(args, split).run();
  DecodeCombine<Traits>(args, split).run();
}

// Work ranges of stream-K, or equal splits where the lengths make these shorter. It is a kernel of
// its own, because the first launch after other kernels reads its instructions from memory. Grid:
// any number of blocks. Block and dynamic shared memory: as above.
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM)
    stream_k_decode_kernel(const __grid_constant__ DecodeKernelArgs args) {
  ptx::wait_for_launch_before();
  // If the next launch begins early in any case, its blocks find places before those that turn out
  // to have no split leave theirs, and are spread more evenly.
  const SplitArgs &schedule = args.problem.split;
  if (schedule.next_begins_early && schedule.next_begins_early_behind_ranges) {
    ptx::let_next_launch_begin();
  }
  KeySplits<Traits> splits(args.problem);
  if (splits.next_launch_begins_early()) ptx::let_next_launch_begin();
  KeySplit split;
  while (splits.next(split)) {
    DecodeWarp<Traits>(args, split).run();
    DecodeCombine<Traits>(args, split).run();
  }
}

template <typename Traits>
constexpr FlashDecodeKernels decode_kernels() {
  return {.decode = flash_decode_kernel<Traits>,
          .stream_k_decode = stream_k_decode_kernel<Traits>,
          .combine = combine_kernel<Traits, DecodeKernelArgs>,
          .append = cache_append_kernel<Traits>};
}

}  // namespace flashsmith::sm80
