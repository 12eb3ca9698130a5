// The decode kernels of the sm80 family: few queries a request, over the keys of a KV cache.
//
// All teams of all blocks read K and V at once and wait for memory, not for one another. At the end
// of a split their partial results meet in shared memory and, if a work tile is split, in global
// memory: the last block to arrive, or a separate kernel, combines them in the order of the keys.
#pragma once

#include "flashsmith/attention/cache_append.cuh"
#include "flashsmith/attention/combine_kernel.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/sm80/decode_combine.cuh"
#include "flashsmith/sm80/decode_traits.cuh"
#include "flashsmith/sm80/decode_warp.cuh"

namespace flashsmith::sm80 {

// Grid: any number of blocks. Block: threads_per_block(CFG). Dynamic shared memory:
// shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM)
    flash_decode_kernel(const __grid_constant__ DecodeKernelArgs args) {
  ptx::wait_for_launch_before();
  if (args.problem.split.next_begins_early) ptx::let_next_launch_begin();
  KeySplits<Traits> splits(args.problem);
  if constexpr (!Traits::asks_on_the_way) splits.use_stream_k();
  if (ptx::thread_index() == 0) SplitTiles(args.problem.split).begin();
  KeySplit split;
  do {
    while (splits.next(split)) {
      if (DecodeWarp<Traits>(args, split).run(splits)) DecodeCombine<Traits>(args, split).run();
    }
  } while (Traits::asks_on_the_way && splits.use_stream_k());
}

template <typename Traits>
constexpr FlashDecodeKernels decode_kernels() {
  return {.decode = flash_decode_kernel<Traits>,
          .combine = combine_kernel<Traits, DecodeKernelArgs>,
          .append = cache_append_kernel<Traits>};
}

}  // namespace flashsmith::sm80
