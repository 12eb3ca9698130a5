// The producer thread: it loads tiles of Q, and blocks of K and V as buffers become free.
#pragma once

#include "flashsmith/attention/block_range.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/sm90/rows.cuh"
#include "flashsmith/sm90/skipped_blocks.cuh"
#include "flashsmith/sm90/tile_queue.cuh"
#include "flashsmith/sm90/transposer.cuh"

namespace flashsmith::sm90 {

// Fills a buffer of K or V, whose layout is `kTile`, with the rows from `row` on, once it is empty.
// In a cluster every producer does so for its share of the rows, in all blocks.
template <typename Traits, BoxedRows kTile>
FLASHSMITH_DEVICE void load_block(ptx::shared_address buffer, const BufferBarriers &barriers,
                                  int parity, const ptx::TensorMap &map, int row,
                                  const Rows &rows) {
  constexpr int kShareBytes = Traits::KV_share_rows * kTile.row_bytes;
  ptx::mbarrier_wait_parity(barriers.empty, parity ^ 1);
  ptx::mbarrier_arrive_expect_tx(barriers.full, kTile.bytes);
#pragma unroll
  for (int box = 0; box < kTile.n_boxes; box++) {
    const ptx::shared_address to = buffer + box * kTile.box_bytes;
    const int column = box * kTile.columns;
    if constexpr (Traits::cluster_size == 1) {
      load_rows<Traits>(to, map, barriers.full, column, row, rows);
    } else {
      const int rank = ptx::cluster_rank();
      load_rows_of_cluster<Traits>(to + rank * kShareBytes, map, barriers.full, column,
                                   row + rank * Traits::KV_share_rows, rows);
    }
  }
}

// Loads each warpgroup's rows of Q by themselves, because one warpgroup may be a block ahead of the
// other. A box of packed heads may have fewer rows than a wgmma.
template <typename Traits>
FLASHSMITH_DEVICE void load_Q(int parity, const Sm90ForwardKernelArgs &args, const WorkTile &tile,
                              const typename Traits::Sequence &sequence) {
  constexpr BoxedRows kTile = Traits::Q_tile;
  constexpr bool kPacked = Traits::packed_heads;
  constexpr int kBytes = kWgmmaM * kTile.row_bytes;
  const int head = kPacked ? tile.head * args.group.size : tile.head;
  const Rows rows{sequence.queries(), sequence.seq_len_q(), head, args.Q_batch_rows};
  const int box_rows = kPacked ? args.group.size * args.group.queries : kWgmmaM;
#pragma unroll 1  // the thread has few registers
  for (int warpgroup = 0; warpgroup < Traits::n_warpgroups; warpgroup++) {
    const BufferBarriers barriers = Barriers<Traits>::Q(warpgroup);
    // A block with one tile loads Q once.
    if constexpr (Traits::config.persistent) ptx::mbarrier_wait_parity(barriers.empty, parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, box_rows * kTile.row_bytes * kTile.n_boxes);
#pragma unroll
    for (int box = 0; box < kTile.n_boxes; box++) {
      const ptx::shared_address to =
          ptx::shared_memory() + Traits::Q_offset + box * kTile.box_bytes + warpgroup * kBytes;
      const int column = box * kTile.columns;
      const int row =
          tile.Q_block * tile_queries<Traits>(args) + warpgroup * warpgroup_queries<Traits>(args);
      if constexpr (kPacked) {
        load_packed_rows<Traits>(to, args.Q_map, barriers.full, column, row, rows);
      } else {
        load_rows<Traits>(to, args.Q_map, barriers.full, column, row, rows);
      }
    }
  }
}

// Waits for the last arrivals of the cluster's warps, which are at barriers of V: other blocks make
// them in this block's shared memory, so that it must not exit before.
template <typename Traits>
FLASHSMITH_DEVICE void wait_for_cluster(RingPosition<Traits::n_stages> stage) {
  if constexpr (Traits::cluster_size == 1) return;
  for (int i = 0; i < Traits::n_stages; i++, stage.advance()) {
    ptx::mbarrier_wait_parity(Barriers<Traits>::V(stage.buffer).empty, stage.parity ^ 1);
  }
}

// Tells the transposing warps that no more V will arrive, by the buffer that would be next.
template <typename Traits>
FLASHSMITH_DEVICE void end_arrivals(const RingPosition<Traits::n_stages> &stage) {
  const BufferBarriers barriers = Barriers<Traits>::arriving_V(stage.buffer);
  ptx::mbarrier_wait_parity(barriers.empty, stage.parity ^ 1);
  ptx::thread_store_shared_4(end_word<Traits>(stage.buffer), true);
  ptx::mbarrier_arrive(barriers.full);
}

// Loads blocks of K and V from the last to the first: blocks with a mask come first.
template <typename Traits>
FLASHSMITH_DEVICE void produce(const Sm90ForwardKernelArgs &args) {
  // Q's buffer is free as soon as the previous tile has Q in registers; else only after that tile's
  // last product, when a buffer of K has been free for long.
  constexpr bool kQFirst = Traits::Q_in_registers;
  constexpr bool kFp8 = Traits::fp8_values;
  constexpr int kVOffset = kFp8 ? Traits::arriving_V_offset : Traits::V_offset;
  const ptx::shared_address shared = ptx::shared_memory();
  const int queries_per_key_head = args.problem.n_heads / args.problem.n_heads_kv;
  TileProducer<Traits> tiles(args);
  RingPosition<Traits::n_stages> stage;
  RingPosition<1> Q_buffer;
  for (tiles.announce(); tiles.tile_index() < n_tiles<Traits>(args.problem); tiles.announce()) {
    const WorkTile tile = tile_at<Traits>(args.problem, tiles.tile_index());
    const int head = Traits::packed_heads ? tile.head : tile.head / queries_per_key_head;
    const typename Traits::Sequence sequence(args.problem, tile.batch);
    const auto [begin, end] = KV_blocks_of_tile<Traits>(args, sequence, tile);
    const Rows K{sequence.keys(), sequence.seq_len_k(), head, args.K_batch_rows};
    const Rows V{sequence.keys(), sequence.seq_len_k(), head, args.V_batch_rows};
    if (kQFirst) load_Q<Traits>(Q_buffer.parity, args, tile, sequence);
    int next = begin < end ? 0 : tiles.draw();
    for (int block = end - 1; block >= begin; block--, stage.advance()) {
      if (block == begin) next = tiles.draw();
      const int row = block * Traits::B_c;
      load_block<Traits, Traits::K_tile>(shared + Traits::K_offset + stage.buffer * Traits::K_bytes,
                                         Barriers<Traits>::K(stage.buffer), stage.parity,
                                         args.K_map, row, K);
      if (!kQFirst && block == end - 1) load_Q<Traits>(Q_buffer.parity, args, tile, sequence);
      load_block<Traits, Traits::V_tile>(
          shared + kVOffset + stage.buffer * Traits::V_bytes,
          kFp8 ? Barriers<Traits>::arriving_V(stage.buffer) : Barriers<Traits>::V(stage.buffer),
          stage.parity, args.V_map, row, V);
    }
    Q_buffer.advance();
    tiles.advance(next);
  }
  tiles.finish();
  if constexpr (kFp8) end_arrivals<Traits>(stage);
  wait_for_cluster<Traits>(stage);
}

}  // namespace flashsmith::sm90
