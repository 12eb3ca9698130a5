// The forward kernel of the sm80 family: FlashAttention-2's algorithm 1, one block of Q a thread
// block.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/sm80/epilogue.cuh"
#include "flashsmith/sm80/gemm.cuh"
#include "flashsmith/sm80/mask.cuh"
#include "flashsmith/sm80/smem_tile.cuh"
#include "flashsmith/sm80/softmax.cuh"
#include "flashsmith/sm80/traits.cuh"

namespace flashsmith::sm80 {

// Grid: (n_Q_blocks, n_heads, batch). Block: threads_per_block(CFG). Dynamic shared memory:
// shared_memory_bytes(CFG). Blocks of K and V are visited from the last to the first.
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM)
    flash_forward_kernel(const __grid_constant__ ForwardKernelArgs args) {
  using value_t = typename Traits::value_t;
  constexpr int B_r = Traits::B_r, B_c = Traits::B_c;

  const int warp = ptx::thread_index() / kWarpSize, lane = ptx::thread_index() % kWarpSize;
  // Causal blocks of Q near the end see the most keys: they start first, so that none is left over.
  const int Q_block =
      Traits::causal ? args.n_Q_blocks - 1 - ptx::block_index_x() : ptx::block_index_x();
  const int head = ptx::block_index_y(), batch = ptx::block_index_z();

  const auto first_row = [&](const TensorStrides &strides) {
    return batch * strides.batch + head * strides.head;
  };
  const int row0 = Q_block * B_r, warp_row = warp * Traits::rows_per_warp;
  const auto *Q =
      static_cast<const value_t *>(args.Q) + first_row(args.Q_strides) + row0 * args.Q_strides.seq;
  const auto *K = static_cast<const value_t *>(args.K) + first_row(args.K_strides);
  const auto *V = static_cast<const value_t *>(args.V) + first_row(args.V_strides);

  const ptx::shared_address shared = ptx::shared_memory();
  const ptx::shared_address Q_tile = shared + Traits::Q_offset;
  const ptx::shared_address K_tile = shared + Traits::K_offset;
  const ptx::shared_address V_tile = shared + Traits::V_offset;
  const ptx::shared_address Q_warp_tile = Q_tile + warp_row * SmemTile<Traits>::kRowBytes;
  const int lane_offset = SmemTile<Traits>::lane_offset(lane);
  const int K_lane_offset = SmemTile<Traits>::K_lane_offset(lane);

  const BlockRange<Traits> range(Q_block, args.n_KV_blocks);
  QFragments<Traits> q;
  OAccumulators<Traits> O = {};
  Softmax<Traits> softmax(args.softmax_scale_log2);

  const int64_t last_row = (range.end - 1) * B_c;
  TileLoader<Traits, B_c> K_loader(K_tile, K + last_row * args.K_strides.seq, args.K_strides.seq);
  TileLoader<Traits, B_c> V_loader(V_tile, V + last_row * args.V_strides.seq, args.V_strides.seq);
  TileLoader<Traits, B_r>(Q_tile, Q, args.Q_strides.seq).load();
  if constexpr (Traits::eager_load_blocks) K_loader.load();
  if constexpr (Traits::Q_in_registers) {
    if constexpr (Traits::async_copy) ptx::cp_async_wait_group<0>();
    ptx::barrier_sync();
#pragma unroll
    for (int k = 0; k < Traits::QK_fragments; k++) {
      load_Q_fragment<Traits>(q[k], Q_warp_tile, lane_offset, k);
    }
  }

  // One block of K and V. Two barriers a block: at each, one tile has arrived for all warps and the
  // other has been read by all, so its next load may start.
  const auto visit = [&]<bool kMasked>(int block) {
    if constexpr (!Traits::eager_load_blocks) K_loader.load();
    if constexpr (Traits::async_copy) ptx::cp_async_wait_group<0>();
    ptx::barrier_sync();  // K is here, V is free
    if constexpr (Traits::eager_load_blocks) V_loader.load();
    K_loader.step_back();

    SAccumulators<Traits> S;
    gemm_QK<Traits>(S, q, Q_warp_tile, K_tile, lane_offset, K_lane_offset, args.seq_len);
    if constexpr (kMasked) {
      mask_causal<Traits>(S, row0 + warp_row + lane / 4, block * B_c + lane % 4 * 2);
    }

    if constexpr (!Traits::eager_load_blocks) V_loader.load();
    V_loader.step_back();
    if constexpr (Traits::async_copy) ptx::cp_async_wait_group<0>();
    ptx::barrier_sync();  // V is here, K is free
    if constexpr (Traits::eager_load_blocks) {
      if (block > 0) K_loader.load();
    }

    PFragments<Traits> P;
    softmax.template step<kMasked>(P, S, O);
    gemm_PV<Traits>(O, P, V_tile, lane_offset, args.seq_len);
  };

  int block = range.end - 1;
  if constexpr (Traits::causal) {
    for (; block >= range.unmasked_end; block--) visit.template operator()<true>(block);
  }
  for (; block >= 0; block--) visit.template operator()<false>(block);

  // O replaces this warp's rows of Q: the last barrier came after their last read.
  softmax.finish(O);
  store_O_to_tile<Traits>(O, Q_warp_tile, lane);
  ptx::warp_sync();
  auto *O_rows = static_cast<value_t *>(args.O) + first_row(args.O_strides) +
                 (row0 + warp_row) * args.O_strides.seq;
  store_tile_to_O<Traits>(O_rows, args.O_strides.seq, Q_warp_tile, lane);
}

}  // namespace flashsmith::sm80
