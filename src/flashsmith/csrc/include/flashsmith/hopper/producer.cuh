// The thread that loads: tiles of Q, and blocks of K and V as buffers become free.
#pragma once

#include "flashsmith/hopper/pipeline.cuh"
#include "flashsmith/hopper/tile_schedule.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/tma.cuh"

namespace flashsmith {

// Fills a buffer of K or V with the rows from `row` on, once it is empty. In a cluster every
// producer does so for its share of the rows, in all blocks.
template <typename Kernel>
FLASHSMITH_DEVICE void load_block(ptx::shared_address buffer, const BufferBarriers &barriers,
                                  int parity, const ptx::TensorMap &map, int row, int head,
                                  int batch) {
  ptx::mbarrier_wait_parity(barriers.empty, parity ^ 1);
  ptx::mbarrier_arrive_expect_tx(barriers.full, Kernel::KV_bytes);
#pragma unroll
  for (int box = 0; box < Kernel::n_boxes; box++) {
    const ptx::shared_address to = buffer + box * Kernel::KV_box_bytes;
    const int column = box * Kernel::box_columns;
    if constexpr (Kernel::cluster_size == 1) {
      ptx::tma_load(to, map, barriers.full, column, row, head, batch);
    } else {
      constexpr uint16_t kAllBlocks = (1 << Kernel::cluster_size) - 1;
      const int rank = ptx::cluster_rank();
      ptx::tma_load_multicast(to + rank * Kernel::KV_share_bytes, map, barriers.full, kAllBlocks,
                              column, row + rank * Kernel::KV_share_rows, head, batch);
    }
  }
}

// Each warpgroup's rows of Q on their own: one may be a block ahead of the other.
template <typename Kernel>
FLASHSMITH_DEVICE void load_Q(int parity, const HopperForwardKernelArgs &args, const Tile &tile) {
  constexpr int kBytes = kWgmmaM * Kernel::row_bytes;
#pragma unroll 1  // the thread has few registers
  for (int warpgroup = 0; warpgroup < Kernel::n_warpgroups; warpgroup++) {
    const BufferBarriers barriers = Barriers<Kernel>::Q(warpgroup);
    // A block with one tile loads them once.
    if constexpr (Kernel::config.persistent) ptx::mbarrier_wait_parity(barriers.empty, parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, kBytes * Kernel::n_boxes);
#pragma unroll
    for (int box = 0; box < Kernel::n_boxes; box++) {
      ptx::tma_load(
          ptx::shared_memory() + Kernel::Q_offset + box * Kernel::Q_box_bytes + warpgroup * kBytes,
          args.Q_map, barriers.full, box * Kernel::box_columns,
          tile.Q_block * Kernel::B_r + warpgroup * kWgmmaM, tile.head, tile.batch);
    }
  }
}

// Until the last arrivals of the cluster's warps, which are at barriers of V: other blocks make
// them in this one's shared memory, which must not end before.
template <typename Kernel>
FLASHSMITH_DEVICE void wait_for_cluster(RingPosition<Kernel::n_stages> stage) {
  if constexpr (Kernel::cluster_size == 1) return;
  for (int i = 0; i < Kernel::n_stages; i++, stage.advance()) {
    ptx::mbarrier_wait_parity(Barriers<Kernel>::V(stage.buffer).empty, stage.parity ^ 1);
  }
}

// Blocks of K and V are visited from the last to the first: those with a mask come first.
template <typename Kernel>
FLASHSMITH_DEVICE void produce(const HopperForwardKernelArgs &args) {
  // Its buffer is free as soon as the tile before has it in registers; else only after that tile's
  // last product, when one of K has been free for long.
  constexpr bool kQFirst = Kernel::Q_in_registers;
  const ptx::shared_address shared = ptx::shared_memory();
  const int queries_per_key_head = args.n_heads / args.n_heads_kv;
  TileProducer<Kernel> tiles(args);
  RingPosition<Kernel::n_stages> stage;
  RingPosition<1> Q_buffer;
  for (tiles.announce(); tiles.place() < n_tiles(args); tiles.announce()) {
    const int next = tiles.draw();
    const Tile tile = tile_at<Kernel>(args, tiles.place());
    const int head_kv = tile.head / queries_per_key_head;
    const int last = n_KV_blocks<Kernel>(args, tile_row_end<Kernel>(tile)) - 1;
    if (kQFirst) load_Q<Kernel>(Q_buffer.parity, args, tile);
    for (int block = last; block >= 0; block--, stage.advance()) {
      const int row = block * Kernel::B_c, buffer = stage.buffer * Kernel::KV_bytes;
      load_block<Kernel>(shared + Kernel::K_offset + buffer, Barriers<Kernel>::K(stage.buffer),
                         stage.parity, args.K_map, row, head_kv, tile.batch);
      if (!kQFirst && block == last) load_Q<Kernel>(Q_buffer.parity, args, tile);
      load_block<Kernel>(shared + Kernel::V_offset + buffer, Barriers<Kernel>::V(stage.buffer),
                         stage.parity, args.V_map, row, head_kv, tile.batch);
    }
    Q_buffer.advance();
    tiles.advance(next);
  }
  tiles.finish();
  wait_for_cluster<Kernel>(stage);
}

}  // namespace flashsmith
