// The backward kernels of the sm90 family: FlashAttention-2's algorithm 2 in warp-specialised
// blocks, a warpgroup for every 64 keys and one that copies. docs/backward.md has the order of the
// products, and the alternatives.
#pragma once

#include "flashsmith/attention/dQ_sums.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/backward_consumer.cuh"
#include "flashsmith/sm90/backward_epilogue.cuh"
#include "flashsmith/sm90/backward_key_sums.cuh"
#include "flashsmith/sm90/backward_producer.cuh"
#include "flashsmith/sm90/backward_shared_keys.cuh"
#include "flashsmith/sm90/backward_shared_keys_epilogue.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
FLASHSMITH_DEVICE void consume(const Sm90BackwardKernelArgs &args, int warpgroup) {
  const GradientArgs &gradient = args.gradient;
  ConsumerPosition<Traits> position;
  const BackwardScheduler<Traits> scheduler(warpgroup);
  if (warpgroup == Traits::n_warpgroups - 1) scheduler.pass();  // the first turn
  for_each_tile<Traits>(args, AnnouncedTiles<Traits, true>(args), [&](const KeyTile<Traits> &tile) {
    BackwardConsumer<Traits> consumer(args, tile, warpgroup, position);
    consumer.run();
    if constexpr (Traits::splits_groups) {
      if (args.parts.n_parts > 1) {
        put_key_sums<Traits>(args, tile, warpgroup, consumer.dK(), consumer.dV());
        return;
      }
    }
    store_key_gradient<Traits>(gradient.dV, gradient.dV_strides, args.problem.d_v, tile, warpgroup,
                               consumer.dV(), scale_of_kept<Traits>(args.problem));
    store_key_gradient<Traits>(gradient.dK, gradient.dK_strides, args.problem.d_qk, tile, warpgroup,
                               consumer.dK(), gradient.softmax_scale);
  });
  scheduler.end();
}

template <typename Traits>
FLASHSMITH_DEVICE void consume_shared_keys(const Sm90BackwardKernelArgs &args, int warpgroup) {
  const GradientArgs &gradient = args.gradient;
  ConsumerPosition<Traits> position;
  for_each_tile<Traits>(args, AnnouncedTiles<Traits, true>(args), [&](const KeyTile<Traits> &tile) {
    SharedKeysConsumer<Traits> consumer(args, tile, warpgroup, position);
    consumer.run();
    store_transposed<Traits>(key_rows<Traits>(gradient.dV, gradient.dV_strides, args.problem.d_v,
                                              tile.sequence, tile.head_kv, tile.key),
                             consumer.dV(), scale_of_kept<Traits>(args.problem), warpgroup);
    store_transposed<Traits>(key_rows<Traits>(gradient.dK, gradient.dK_strides, args.problem.d_qk,
                                              tile.sequence, tile.head_kv, tile.key),
                             consumer.dK(), gradient.softmax_scale, warpgroup);
  });
}

// Computes dK and dV, and the sums of dQ. Grid: blocks of B_c keys of the longest sequence, or the
// room of the table of key tiles, of all heads of K, of all parts of a group; with persistent
// blocks, at most the number of SMs. Block: threads_per_block(CFG). Dynamic shared memory:
// shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, 1)
    backward_kernel(const __grid_constant__ Sm90BackwardKernelArgs args) {
  if (ptx::thread_index() == 0) BackwardBarriers<Traits>::init();
  ptx::barrier_sync();
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  // ptxas knows warp_index() to be uniform, and keeps values computed from it in uniform registers.
  const int warpgroup = ptx::warp_index() / Traits::n_warpgroup_warps;
  if (warpgroup == 0) {
    ptx::decrease_registers<Traits::registers.producer>();
    produce<Traits>(args);
  } else {
    ptx::increase_registers<Traits::registers.consumer>();
    if constexpr (Traits::shares_keys) {
      consume_shared_keys<Traits>(args, warpgroup - 1);
    } else {
      consume<Traits>(args, warpgroup - 1);
    }
  }
}

// Returns the kernels of one call. key_tile_table: see key_tile_table_kernel; statistics and
// conversion have a grid of blocks of kStatisticsRows, and kStatisticsThreads and kSumsThreads
// threads; sinks: see sink_gradient_kernel; key_sums: see key_sums_kernel.
template <typename Traits>
constexpr Sm90BackwardKernels backward_kernels() {
  sm90_backward_kernel_fn key_tile_table = nullptr, sinks = nullptr, key_sums = nullptr,
                          conversion = nullptr;
  if constexpr (Traits::Sequence::kVarlen) {
    key_tile_table = key_tile_table_kernel<Traits, Sm90BackwardKernelArgs>;
  }
  if constexpr (Traits::has_sinks) sinks = sink_gradient_kernel<Traits, Sm90BackwardKernelArgs>;
  if constexpr (Traits::splits_groups) key_sums = key_sums_kernel<Traits>;
  if constexpr (Traits::dQ_accumulation == DQAccumulation::atomic) {
    conversion = dQ_conversion_kernel<Traits, Sm90BackwardKernelArgs>;
  }
  return {.key_tile_table = key_tile_table,
          .statistics = row_statistics_kernel<Traits, Sm90BackwardKernelArgs>,
          .sinks = sinks,
          .main = backward_kernel<Traits>,
          .key_sums = key_sums,
          .conversion = conversion};
}

}  // namespace flashsmith::sm90
