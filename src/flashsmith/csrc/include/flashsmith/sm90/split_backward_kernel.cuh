// The split backward of the sm90 family, for rows whose dK and dV do not fit in the registers of
// one warpgroup: FlashAttention-2's algorithm 2, once for dQ and once for dK and dV. Nothing is
// accumulated in global memory, and results are deterministic.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/backward_epilogue.cuh"
#include "flashsmith/sm90/split_backward_key_consumers.cuh"
#include "flashsmith/sm90/split_backward_key_producer.cuh"
#include "flashsmith/sm90/split_backward_queries.cuh"

namespace flashsmith::sm90 {

// Grid: blocks of n_warpgroups * B_r queries of the longest sequence, x n_heads x batch. Block:
// threads_per_block(CFG). Dynamic shared memory: dQ_shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, 1)
    split_dQ_kernel(const __grid_constant__ Sm90BackwardKernelArgs args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  const QueryTile<Traits> tile(args);
  if (tile.row >= tile.sequence.seq_len_q()) return;
  if (ptx::thread_index() == 0) dQBarriers<Traits>::init();
  ptx::barrier_sync();
  // As in the forward kernel, warp_index() separates the producers, because ptxas knows it to be
  // uniform.
  const int warpgroup = ptx::warp_index() / Traits::n_warpgroup_warps;
  if (warpgroup == 0) {
    ptx::decrease_registers<Traits::registers.producer>();
    if (ptx::warp_index() == 0 && ptx::elect_one()) dQProducer<Traits>(args, tile).run();
  } else {
    ptx::increase_registers<Traits::registers.consumer>();
    dQConsumer<Traits> consumer(args, tile, warpgroup - 1);
    consumer.run();
    consumer.store();
  }
}

// Grid: blocks of B_c keys of the longest sequence, in whole clusters, x n_heads_kv x batch, in
// clusters of cluster_size. Block: threads_per_block(CFG). Dynamic shared memory:
// dK_dV_shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, 1)
    split_dK_dV_kernel(const __grid_constant__ Sm90BackwardKernelArgs args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  const KeyTile<Traits> tile(args, KeyBlock::at<Traits>(args, ptx::block_index_x()));
  if (tile.first_key_of_cluster() >= tile.sequence.seq_len_k()) return;
  if (ptx::thread_index() == 0) dKdVBarriers<Traits>::init();
  if constexpr (Traits::cluster_size > 1) {
    ptx::cluster_sync();
  } else {
    ptx::barrier_sync();
  }
  const GradientArgs &gradient = args.gradient;
  const int warpgroup = ptx::warp_index() / Traits::n_warpgroup_warps;
  if (warpgroup == 0) {
    ptx::decrease_registers<Traits::registers.producer>();
    if (tile.n_steps > 0 && ptx::warp_index() == 0 && ptx::elect_one()) {
      dKdVProducer<Traits>(args, tile).run();
    }
  } else if (warpgroup == 1) {
    ptx::increase_registers<Traits::registers.consumer>();
    dVConsumer<Traits> consumer(args, tile);
    consumer.run();
    store_key_gradient<Traits>(gradient.dV, gradient.dV_strides, args.problem.d_v, tile, 0,
                               consumer.sum(), scale_of_kept<Traits>(args.problem));
  } else {
    ptx::increase_registers<Traits::registers.consumer>();
    dKConsumer<Traits> consumer(args, tile);
    consumer.run();
    store_key_gradient<Traits>(gradient.dK, gradient.dK_strides, args.problem.d_qk, tile, 0,
                               consumer.sum(), gradient.softmax_scale);
  }
}

// Returns the kernels of one call. statistics has a grid of blocks of kStatisticsRows, and
// kStatisticsThreads threads; sinks: see sink_gradient_kernel.
template <typename Traits>
constexpr Sm90SplitBackwardKernels split_backward_kernels() {
  sm90_backward_kernel_fn sinks = nullptr;
  if constexpr (Traits::has_sinks) sinks = sink_gradient_kernel<Traits, Sm90BackwardKernelArgs>;
  return {.statistics = row_statistics_kernel<Traits, Sm90BackwardKernelArgs>,
          .sinks = sinks,
          .dQ = split_dQ_kernel<Traits>,
          .dK_dV = split_dK_dV_kernel<Traits>};
}

}  // namespace flashsmith::sm90
