// The forward kernel of the sm90 family: FlashAttention-2's algorithm 1 in warp-specialised blocks,
// organised as in FlashAttention-3 (section 3). One warpgroup loads, and transposes FP8 V; the
// others compute.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/sm90/consumer.cuh"
#include "flashsmith/sm90/packed_heads.cuh"
#include "flashsmith/sm90/paged_producer.cuh"
#include "flashsmith/sm90/pipeline.cuh"
#include "flashsmith/sm90/producer.cuh"
#include "flashsmith/sm90/traits.cuh"
#include "flashsmith/sm90/transposer.cuh"

namespace flashsmith::sm90 {

// Grid: grid_blocks(CFG, tiles, num_sms), in clusters of cluster_size along x. Block:
// threads_per_block(CFG). Dynamic shared memory: shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, 1)
    forward_kernel(const __grid_constant__ Sm90ForwardKernelArgs args) {
  // Every thread has the max number of registers already if there is one consumer warpgroup.
  constexpr bool kMoveRegisters = Traits::n_warpgroups > 1;
  if (ptx::thread_index() == 0) {
    if constexpr (Traits::fp8_values) clear_end_words<Traits>();
    Barriers<Traits>::init();
  }
  if constexpr (Traits::packed_heads) clear_left_rows<Traits>(args.group);
  // A warp that has nothing else to do yet finds the block's tile, if no launch has made the tile
  // table.
  const bool has_one_tile = Traits::Sequence::kVarlen && !TileTable{args.problem.tiles}.is_made();
  if constexpr (Traits::Sequence::kVarlen) {
    if (has_one_tile && ptx::warp_index() == 1) keep_own_entry<Traits>(args.problem);
  }
  if constexpr (Traits::cluster_size > 1) {
    ptx::cluster_sync();
  } else {
    ptx::barrier_sync();
  }
  if constexpr (Traits::Sequence::kVarlen) {
    if (has_one_tile) {
      const bool has_none = own_entry<Traits>() == kNoEntry;
      ptx::warp_sync();  // all lanes have read before one of them proceeds alone
      if (has_none) return;
    }
  }
  // warp_index() comes from a shuffle, so that ptxas knows it to be uniform, and keeps ring
  // positions and loop counts in uniform registers.
  const int warpgroup = ptx::warp_index() / (kWarpgroupSize / kWarpSize);
  if (warpgroup == 0) {
    if constexpr (kMoveRegisters) ptx::decrease_registers<Traits::registers.producer>();
    if (Traits::fp8_values && ptx::warp_index() > 0) {
      if constexpr (Traits::fp8_values) Transposer<Traits>(ptx::warp_index() - 1).run();
    } else if (Traits::paged && ptx::warp_index() == 0) {
      if constexpr (Traits::paged) produce_from_pages<Traits>(args);
    } else if (ptx::warp_index() == 0 && ptx::elect_one()) {
      produce<Traits>(args);
    }
  } else {
    if constexpr (kMoveRegisters) ptx::increase_registers<Traits::registers.consumer>();
    Consumer<Traits>(args, warpgroup - 1).run();
  }
}

}  // namespace flashsmith::sm90
