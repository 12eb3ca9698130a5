// The decode kernels of the sm90 family: many packed GQA rows, over the keys of a KV cache, with
// the split-KV schedule of the sm80 family (attention/key_splits.cuh). Warps of one warpgroup load;
// the other warpgroups compute like the forward's, each for 64 rows.
#pragma once

#include "flashsmith/attention/cache_append.cuh"
#include "flashsmith/attention/combine_kernel.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/decode_consumer.cuh"
#include "flashsmith/sm90/decode_producer.cuh"
#include "flashsmith/sm90/decode_traits.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
FLASHSMITH_DEVICE void decode(const Sm90DecodeKernelArgs &args) {
  constexpr bool kMoveRegisters = Traits::n_warpgroups > 1;
  if (ptx::thread_index() == 0) Barriers<Traits>::init();
  ptx::barrier_sync();
  ptx::wait_for_launch_before();
  // Where splits wait for each other, blocks of the next launch would take the SMs that have none,
  // and later spread unevenly.
  if constexpr (!Traits::waits) ptx::let_next_launch_begin();
  const int warpgroup = ptx::warp_index() / (kWarpgroupSize / kWarpSize);
  if (warpgroup == 0) {
    if constexpr (kMoveRegisters) ptx::decrease_registers<Traits::registers.producer>();
    const int warp = ptx::warp_index();
    if (warp < kLoadingWarps) produce_from_cache<Traits>(args, warp > 0);
  } else {
    if constexpr (kMoveRegisters) ptx::increase_registers<Traits::registers.consumer>();
    DecodeConsumer<Traits>(args, warpgroup - 1).run();
  }
}

// Grid: any number of blocks. Block: threads_per_block(CFG). Dynamic shared memory:
// shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, 1)
    decode_kernel(const __grid_constant__ Sm90DecodeKernelArgs args) {
  decode<Traits>(args);
}

// Kernels whose splits wait for each other. A schedule of its own has a kernel of its own, with
// half of the instructions: the first launch after other kernels reads them from memory. Block and
// dynamic shared memory: as above; all blocks run at the same time. Grid: a block for each equal
// split, or any number for stream-K.
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, 1)
    waiting_decode_kernel(const __grid_constant__ Sm90DecodeKernelArgs args) {
  decode<WaitingTraits<Traits, false>>(args);
}
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, 1)
    stream_k_decode_kernel(const __grid_constant__ Sm90DecodeKernelArgs args) {
  decode<WaitingTraits<Traits, true>>(args);
}

template <typename Traits>
constexpr Sm90DecodeKernels decode_kernels() {
  return {.decode = decode_kernel<Traits>,
          .waiting_decode = waiting_decode_kernel<Traits>,
          .stream_k_decode = stream_k_decode_kernel<Traits>,
          .combine = combine_kernel<Traits, Sm90DecodeKernelArgs>,
          .append = cache_append_kernel<Traits>};
}

}  // namespace flashsmith::sm90
