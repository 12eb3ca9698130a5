// The forward kernel of the sm80 family: FlashAttention-2's algorithm 1, one block of Q a thread
// block.
#pragma once

#include "flashsmith/ampere/epilogue.cuh"
#include "flashsmith/ampere/gemm.cuh"
#include "flashsmith/ampere/mask.cuh"
#include "flashsmith/ampere/softmax.cuh"
#include "flashsmith/ampere/static_kernel_configuration.cuh"
#include "flashsmith/ampere/tile.cuh"
#include "flashsmith/ptx/barrier.cuh"

namespace flashsmith {

// Grid: (n_Q_blocks, n_heads, batch). Block: threads_per_block(CFG). Dynamic shared memory:
// shared_memory_bytes(CFG). Blocks of K and V are visited from the last to the first.
template <typename Kernel>
__global__ void __launch_bounds__(Kernel::n_threads, Kernel::blocks_per_SM)
    flash_forward_kernel(const __grid_constant__ ForwardKernelArgs args) {
  using value_t = typename Kernel::value_t;
  constexpr int B_r = Kernel::B_r, B_c = Kernel::B_c;

  const int warp = ptx::thread_index() / kWarpSize, lane = ptx::thread_index() % kWarpSize;
  // Causal blocks of Q near the end see the most keys: they start first, so that none is left over.
  const int Q_block =
      Kernel::causal ? args.n_Q_blocks - 1 - ptx::block_index_x() : ptx::block_index_x();
  const int head = ptx::block_index_y(), batch = ptx::block_index_z();

  const auto first_row = [&](const TensorStrides &strides) {
    return batch * strides.batch + head * strides.head;
  };
  const int row0 = Q_block * B_r, warp_row = warp * Kernel::rows_per_warp;
  const auto *Q =
      static_cast<const value_t *>(args.Q) + first_row(args.Q_strides) + row0 * args.Q_strides.seq;
  const auto *K = static_cast<const value_t *>(args.K) + first_row(args.K_strides);
  const auto *V = static_cast<const value_t *>(args.V) + first_row(args.V_strides);

  const ptx::shared_address shared = ptx::shared_memory();
  const ptx::shared_address Q_tile = shared + Kernel::Q_offset;
  const ptx::shared_address K_tile = shared + Kernel::K_offset;
  const ptx::shared_address V_tile = shared + Kernel::V_offset;
  const ptx::shared_address Q_warp_tile = Q_tile + warp_row * Tile<Kernel>::kRowBytes;
  const int lane_offset = Tile<Kernel>::lane_offset(lane);
  const int K_lane_offset = Tile<Kernel>::K_lane_offset(lane);

  const BlockRange<Kernel> range(Q_block, args.n_KV_blocks);
  QFragments<Kernel> q;
  OAccumulators<Kernel> O = {};
  Softmax<Kernel> softmax(args.softmax_scale_log2);

  const int64_t last_row = (range.end - 1) * B_c;
  TileLoader<Kernel, B_c> K_loader(K_tile, K + last_row * args.K_strides.seq, args.K_strides.seq);
  TileLoader<Kernel, B_c> V_loader(V_tile, V + last_row * args.V_strides.seq, args.V_strides.seq);
  TileLoader<Kernel, B_r>(Q_tile, Q, args.Q_strides.seq).load();
  if constexpr (Kernel::eager_load_blocks) K_loader.load();
  if constexpr (Kernel::Q_in_registers) {
    if constexpr (Kernel::async_copy) ptx::cp_async_wait_group<0>();
    ptx::barrier_sync();
#pragma unroll
    for (int k = 0; k < Kernel::QK_fragments; k++) {
      load_Q_fragment<Kernel>(q[k], Q_warp_tile, lane_offset, k);
    }
  }

  // One block of K and V. Two barriers a block: at each, one tile has arrived for all warps and the
  // other has been read by all, so its next load may start.
  const auto visit = [&]<bool kMasked>(int block) {
    if constexpr (!Kernel::eager_load_blocks) K_loader.load();
    if constexpr (Kernel::async_copy) ptx::cp_async_wait_group<0>();
    ptx::barrier_sync();  // K is here, V is free
    if constexpr (Kernel::eager_load_blocks) V_loader.load();
    K_loader.step_back();

    SAccumulators<Kernel> S;
    gemm_QK<Kernel>(S, q, Q_warp_tile, K_tile, lane_offset, K_lane_offset, args.seq_len);
    if constexpr (kMasked) {
      mask_causal<Kernel>(S, row0 + warp_row + lane / 4, block * B_c + lane % 4 * 2);
    }

    if constexpr (!Kernel::eager_load_blocks) V_loader.load();
    V_loader.step_back();
    if constexpr (Kernel::async_copy) ptx::cp_async_wait_group<0>();
    ptx::barrier_sync();  // V is here, K is free
    if constexpr (Kernel::eager_load_blocks) {
      if (block > 0) K_loader.load();
    }

    PFragments<Kernel> P;
    softmax.template step<kMasked>(P, S, O);
    gemm_PV<Kernel>(O, P, V_tile, lane_offset, args.seq_len);
  };

  int block = range.end - 1;
  if constexpr (Kernel::causal) {
    for (; block >= range.unmasked_end; block--) visit.template operator()<true>(block);
  }
  for (; block >= 0; block--) visit.template operator()<false>(block);

  // O replaces this warp's rows of Q: the last barrier came after their last read.
  softmax.finish(O);
  store_O_to_tile<Kernel>(O, Q_warp_tile, lane);
  ptx::warp_sync();
  auto *O_rows = static_cast<value_t *>(args.O) + first_row(args.O_strides) +
                 (row0 + warp_row) * args.O_strides.seq;
  store_tile_to_O<Kernel>(O_rows, args.O_strides.seq, Q_warp_tile, lane);
}

}  // namespace flashsmith
