// The thread that loads: tiles of Q, and blocks of K and V as buffers become free.
#pragma once

#include "flashsmith/attention/block_range.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/sm90/rows.cuh"
#include "flashsmith/sm90/skipped_blocks.cuh"
#include "flashsmith/sm90/tile_queue.cuh"

namespace flashsmith::sm90 {

// Fills a buffer of K or V with the rows from `row` on, once it is empty. In a cluster every
// producer does so for its share of the rows, in all blocks.
template <typename Traits>
FLASHSMITH_DEVICE void load_block(ptx::shared_address buffer, const BufferBarriers &barriers,
                                  int parity, const ptx::TensorMap &map, int row,
                                  const Rows &rows) {
  ptx::mbarrier_wait_parity(barriers.empty, parity ^ 1);
  ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::KV_bytes);
#pragma unroll
  for (int box = 0; box < Traits::n_boxes; box++) {
    const ptx::shared_address to = buffer + box * Traits::KV_box_bytes;
    const int column = box * Traits::box_columns;
    if constexpr (Traits::cluster_size == 1) {
      load_rows<Traits>(to, map, barriers.full, column, row, rows);
    } else {
      const int rank = ptx::cluster_rank();
      load_rows_of_cluster<Traits>(to + rank * Traits::KV_share_bytes, map, barriers.full, column,
                                   row + rank * Traits::KV_share_rows, rows);
    }
  }
}

// Each warpgroup's rows of Q on their own: one may be a block ahead of the other.
template <typename Traits>
FLASHSMITH_DEVICE void load_Q(int parity, const Sm90ForwardKernelArgs &args, const WorkTile &tile,
                              const typename Traits::Sequence &sequence) {
  constexpr int kBytes = kWgmmaM * Traits::row_bytes;
  const Rows rows{sequence.queries(), sequence.seq_len_q(), tile.head, args.Q_batch_rows};
#pragma unroll 1  // the thread has few registers
  for (int warpgroup = 0; warpgroup < Traits::n_warpgroups; warpgroup++) {
    const BufferBarriers barriers = Barriers<Traits>::Q(warpgroup);
    // A block with one tile loads them once.
    if constexpr (Traits::config.persistent) ptx::mbarrier_wait_parity(barriers.empty, parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, kBytes * Traits::n_boxes);
#pragma unroll
    for (int box = 0; box < Traits::n_boxes; box++) {
      load_rows<Traits>(
          ptx::shared_memory() + Traits::Q_offset + box * Traits::Q_box_bytes + warpgroup * kBytes,
          args.Q_map, barriers.full, box * Traits::box_columns,
          tile.Q_block * Traits::B_r + warpgroup * kWgmmaM, rows);
    }
  }
}

// Until the last arrivals of the cluster's warps, which are at barriers of V: other blocks make
// them in this one's shared memory, which must not end before.
template <typename Traits>
FLASHSMITH_DEVICE void wait_for_cluster(RingPosition<Traits::n_stages> stage) {
  if constexpr (Traits::cluster_size == 1) return;
  for (int i = 0; i < Traits::n_stages; i++, stage.advance()) {
    ptx::mbarrier_wait_parity(Barriers<Traits>::V(stage.buffer).empty, stage.parity ^ 1);
  }
}

// Blocks of K and V are visited from the last to the first: those with a mask come first.
template <typename Traits>
FLASHSMITH_DEVICE void produce(const Sm90ForwardKernelArgs &args) {
  // Its buffer is free as soon as the tile before has it in registers; else only after that tile's
  // last product, when one of K has been free for long.
  constexpr bool kQFirst = Traits::Q_in_registers;
  const ptx::shared_address shared = ptx::shared_memory();
  const int queries_per_key_head = args.problem.n_heads / args.problem.n_heads_kv;
  TileProducer<Traits> tiles(args);
  RingPosition<Traits::n_stages> stage;
  RingPosition<1> Q_buffer;
  for (tiles.announce(); tiles.tile_index() < n_tiles<Traits>(args.problem); tiles.announce()) {
    const int next = tiles.draw();
    const WorkTile tile = tile_at<Traits>(args.problem, tiles.tile_index());
    const int head = tile.head / queries_per_key_head;
    const typename Traits::Sequence sequence(args.problem, tile.batch);
    const auto [begin, end] = KV_blocks_of_tile<Traits>(args.problem, sequence, tile);
    const Rows K{sequence.keys(), sequence.seq_len_k(), head, args.K_batch_rows};
    const Rows V{sequence.keys(), sequence.seq_len_k(), head, args.V_batch_rows};
    if (kQFirst) load_Q<Traits>(Q_buffer.parity, args, tile, sequence);
    for (int block = end - 1; block >= begin; block--, stage.advance()) {
      const int row = block * Traits::B_c, buffer = stage.buffer * Traits::KV_bytes;
      load_block<Traits>(shared + Traits::K_offset + buffer, Barriers<Traits>::K(stage.buffer),
                         stage.parity, args.K_map, row, K);
      if (!kQFirst && block == end - 1) load_Q<Traits>(Q_buffer.parity, args, tile, sequence);
      load_block<Traits>(shared + Traits::V_offset + buffer, Barriers<Traits>::V(stage.buffer),
                         stage.parity, args.V_map, row, V);
    }
    Q_buffer.advance();
    tiles.advance(next);
  }
  tiles.finish();
  wait_for_cluster<Traits>(stage);
}

}  // namespace flashsmith::sm90
