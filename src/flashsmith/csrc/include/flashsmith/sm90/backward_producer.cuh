// The threads of the backward that copy: K and V of the tile, blocks of Q and dO as stages become
// free, and dQ of a block into the sums.
#pragma once

#include "flashsmith/ptx/reduction.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/sm90/backward_pipeline.cuh"
#include "flashsmith/sm90/key_tile_queue.cuh"
#include "flashsmith/sm90/rows.cuh"

namespace flashsmith::sm90 {

// The rows from `row` on, `kBoxBytes` a box, counted by `barrier`.
template <typename Traits, int kBoxBytes>
FLASHSMITH_DEVICE void load_tile(ptx::shared_address tile, const ptx::TensorMap &map,
                                 ptx::shared_address barrier, int row, const Rows &rows) {
#pragma unroll
  for (int box = 0; box < Traits::n_boxes; box++) {
    load_rows<Traits>(tile + box * kBoxBytes, map, barrier, box * Traits::box_columns, row, rows);
  }
}

// Where the thread that loads is in its rings, from tile to tile.
template <typename Traits>
struct ProducerPosition {
  RingPosition<Traits::Q_stages> Q;
  RingPosition<Traits::dO_stages> dO;
  RingPosition<1> keys;
  // Of queries, which have stages before K and V of the tile before are no longer needed; nobody
  // needs any before the first tile.
  int n_blocks_before_keys = 0;
};

// Loads K and V of a tile, and fills stages with blocks of Q, their statistics, and dO.
template <typename Traits>
class KeyTileProducer {
  using Barriers = BackwardBarriers<Traits>;

  const Sm90BackwardKernelArgs &args_;
  const KeyTile<Traits> &tile_;
  ProducerPosition<Traits> &position_;

 public:
  FLASHSMITH_DEVICE KeyTileProducer(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile,
                                    ProducerPosition<Traits> &position)
      : args_(args), tile_(tile), position_(position) {}

  FLASHSMITH_DEVICE void run() {
    int until_keys = position_.n_blocks_before_keys;
#pragma unroll 1
    for (int head = tile_.first_head; head < tile_.first_head + tile_.n_heads; head++) {
#pragma unroll 1
      for (int block = tile_.begin; block < tile_.end; block++) {
        if (until_keys-- == 0) load_keys();
        load_Q(head, block);
        load_dO(head, block);
      }
    }
    if (until_keys >= 0) load_keys();
  }

 private:
  FLASHSMITH_DEVICE void load_keys() {
    constexpr int kBlocks =
        Traits::Q_stages < Traits::dO_stages ? Traits::Q_stages : Traits::dO_stages;
    position_.n_blocks_before_keys = kBlocks;
    const ptx::shared_address shared = ptx::shared_memory();
    const BufferBarriers barriers = Barriers::keys();
    const Place place = tile_.sequence.keys();
    const int length = tile_.sequence.seq_len_k(), head = tile_.head_kv;
    // A block with one tile loads them once.
    if constexpr (Traits::config.persistent) {
      ptx::mbarrier_wait_parity(barriers.empty, position_.keys.parity ^ 1);
    }
    ptx::mbarrier_arrive_expect_tx(barriers.full, 2 * Traits::key_tile_bytes);
    load_tile<Traits, Traits::key_box_bytes>(shared + Traits::K_offset, args_.K_map, barriers.full,
                                             tile_.key, {place, length, head, args_.K_batch_rows});
    load_tile<Traits, Traits::key_box_bytes>(shared + Traits::V_offset, args_.V_map, barriers.full,
                                             tile_.key, {place, length, head, args_.V_batch_rows});
    position_.keys.advance();
  }

  FLASHSMITH_DEVICE Rows rows(int head, int batch_rows) const {
    return {tile_.sequence.queries(), tile_.sequence.seq_len_q(), head, batch_rows};
  }

  FLASHSMITH_DEVICE void load_Q(int head, int block) {
    const ptx::shared_address shared = ptx::shared_memory();
    const BufferBarriers barriers = Barriers::Q(position_.Q.buffer);
    ptx::mbarrier_wait_parity(barriers.empty, position_.Q.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::query_tile_bytes + kStatisticsBytes);
    load_tile<Traits, Traits::query_box_bytes>(
        shared + Traits::Q_offset + position_.Q.buffer * Traits::query_tile_bytes, args_.Q_map,
        barriers.full, block * Traits::B_r, rows(head, args_.Q_batch_rows));
    ptx::bulk_load(shared + Traits::statistics_offset + position_.Q.buffer * kStatisticsBytes,
                   statistics_of(args_.gradient, tile_.first_block(args_.gradient) + block, head),
                   kStatisticsBytes, barriers.full);
    position_.Q.advance();
  }

  FLASHSMITH_DEVICE void load_dO(int head, int block) {
    const BufferBarriers barriers = Barriers::dO(position_.dO.buffer);
    ptx::mbarrier_wait_parity(barriers.empty, position_.dO.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::query_tile_bytes);
    load_tile<Traits, Traits::query_box_bytes>(
        ptx::shared_memory() + Traits::dO_offset + position_.dO.buffer * Traits::query_tile_bytes,
        args_.dO_map, barriers.full, block * Traits::B_r, rows(head, args_.dO_batch_rows));
    position_.dO.advance();
  }
};

// Adds what a warpgroup leaves of dQ, block by block, to the sums.
template <typename Traits>
FLASHSMITH_DEVICE void add_dQ(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile,
                              int warpgroup, int &parity) {
  const BufferBarriers barriers = BackwardBarriers<Traits>::dQ(warpgroup);
  const ptx::shared_address dQ =
      ptx::shared_memory() + Traits::dQ_offset + warpgroup * Traits::dQ_bytes;
  const int first_block = tile.first_block(args.gradient) + tile.begin;
#pragma unroll 1
  for (int step = Traits::shares_dQ ? 0 : warpgroup; step < tile.n_steps;
       step += Traits::dQ_period, parity ^= 1) {
    const int head = step / tile.n_blocks, block = step - head * tile.n_blocks;
    float *sums =
        sums_of<Traits::d_head>(args.gradient, first_block + block, tile.first_head + head);
    if constexpr (Traits::shares_dQ) sums += warpgroup * Traits::dQ_floats;
    ptx::mbarrier_wait_parity(barriers.full, parity);
    ptx::bulk_add(sums, dQ, Traits::dQ_bytes);
    ptx::tma_store_commit_group();
    ptx::tma_store_wait_group_read<0>();
    ptx::mbarrier_arrive(barriers.empty);
  }
}

// Warp 0 loads, warp 1 + i adds what warpgroup i leaves.
template <typename Traits>
FLASHSMITH_DEVICE void produce(const Sm90BackwardKernelArgs &args) {
  if (!ptx::elect_one()) return;
  const int warp = ptx::warp_index();
  if (warp == 0) {
    ProducerPosition<Traits> position;
    for_each_tile<Traits>(args, DrawnTiles<Traits>(args), [&](const KeyTile<Traits> &tile) {
      if (tile.n_steps > 0) KeyTileProducer<Traits>(args, tile, position).run();
    });
  } else if (warp <= Traits::n_warpgroups) {
    int parity = 0;
    for_each_tile<Traits>(
        args, AnnouncedTiles<Traits, false>(args),
        [&](const KeyTile<Traits> &tile) { add_dQ<Traits>(args, tile, warp - 1, parity); });
  }
}

}  // namespace flashsmith::sm90
