// The sums backward of the sm80 family: FlashAttention-2's algorithm 2 by blocks of keys, with dQ
// accumulated in global memory, in an order that differs from run to run.
#pragma once

#include "flashsmith/attention/dQ_sums.cuh"
#include "flashsmith/attention/row_statistics.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/sm80/sums_backward_block.cuh"
#include "flashsmith/sm80/sums_backward_traits.cuh"

namespace flashsmith::sm80 {

// Grid: (blocks of B_c keys of the longest sequence, n_heads_kv, batch). Block:
// threads_per_block(CFG). Dynamic shared memory: shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM)
    sums_backward_kernel(const __grid_constant__ BackwardKernelArgs args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  SumsBackwardBlock<Traits>(args).run();
}

// Returns the kernels of one call. statistics and conversion have a grid of blocks of
// kStatisticsRows, and kStatisticsThreads threads; sinks: see sink_gradient_kernel.
template <typename Traits>
constexpr Sm80SumsBackwardKernels sums_backward_kernels() {
  backward_kernel_fn sinks = nullptr;
  if constexpr (Traits::has_sinks) sinks = sink_gradient_kernel<Traits, BackwardKernelArgs>;
  return {.statistics = row_statistics_kernel<Traits, BackwardKernelArgs>,
          .sinks = sinks,
          .main = sums_backward_kernel<Traits>,
          .conversion = dQ_conversion_kernel<Traits, BackwardKernelArgs>};
}

}  // namespace flashsmith::sm80
