// The backward kernels of the sm80 family: FlashAttention-2's algorithm 2, once for dQ and once for
// dK and dV, so that nothing is accumulated in global memory and results are deterministic.
#pragma once

#include "flashsmith/attention/row_statistics.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/sm80/backward_block.cuh"
#include "flashsmith/sm80/backward_traits.cuh"

namespace flashsmith::sm80 {

// The kernels differ in the gradients that they compute. Grid: (blocks of B_r queries of the
// longest sequence, n_heads, batch) for dQ, else (blocks of B_r keys of the longest sequence,
// n_heads_kv, batch). Block: threads_per_block(CFG). Dynamic shared memory:
// shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM(GradientPass::dQ))
    dQ_kernel(const __grid_constant__ BackwardKernelArgs args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  BackwardBlock<Traits, GradientPass::dQ>(args).run();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM(GradientPass::dK_dV))
    dK_dV_kernel(const __grid_constant__ BackwardKernelArgs args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  BackwardBlock<Traits, GradientPass::dK_dV>(args).run();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM(GradientPass::dK))
    dK_kernel(const __grid_constant__ BackwardKernelArgs args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  BackwardBlock<Traits, GradientPass::dK>(args).run();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM(GradientPass::dV))
    dV_kernel(const __grid_constant__ BackwardKernelArgs args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  BackwardBlock<Traits, GradientPass::dV>(args).run();
}

template <typename Traits>
constexpr FlashBackwardKernels backward_kernels() {
  FlashBackwardKernels kernels{};
  kernels.statistics = row_statistics_kernel<Traits, BackwardKernelArgs>;
  if constexpr (Traits::has_sinks) kernels.sinks = sink_gradient_kernel<Traits, BackwardKernelArgs>;
  kernels.dQ = dQ_kernel<Traits>;
  if constexpr (Traits::split_dK_dV) {
    kernels.dK = dK_kernel<Traits>;
    kernels.dV = dV_kernel<Traits>;
  } else {
    kernels.dK_dV = dK_dV_kernel<Traits>;
  }
  return kernels;
}

}  // namespace flashsmith::sm80
