// The warps of the backward's producer: a thread loads K and V of the tile, and blocks of Q and dO
// as stages become free; threads add dQ of a block to the sums; a warp may convert sums.
#pragma once

#include "flashsmith/ptx/reduction.cuh"
#include "flashsmith/sm90/backward_adder.cuh"
#include "flashsmith/sm90/backward_converter.cuh"
#include "flashsmith/sm90/backward_pipeline.cuh"
#include "flashsmith/sm90/key_tile_queue.cuh"
#include "flashsmith/sm90/rows.cuh"

namespace flashsmith::sm90 {

// Loads the rows from `row` on, `kBoxBytes` a box, and counts them at `barrier`.
template <typename Traits, int kBoxBytes>
FLASHSMITH_DEVICE void load_tile(ptx::shared_address tile, const ptx::TensorMap &map,
                                 ptx::shared_address barrier, int row, const Rows &rows) {
#pragma unroll
  for (int box = 0; box < Traits::n_boxes; box++) {
    load_rows<Traits>(tile + box * kBoxBytes, map, barrier, box * Traits::box_columns, row, rows);
  }
}

// The positions of the loading thread in its rings, across tiles.
template <typename Traits>
struct ProducerPosition {
  RingPosition<Traits::Q_stages> Q;
  RingPosition<Traits::dO_stages> dO;
  RingPosition<1> keys;
  // The number of blocks of queries that are loaded before K and V of a tile, because they have
  // free stages while the previous tile still needs its K and V. The first tile has no previous
  // one.
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
    QueryVisit visit = tile_.first_visit();
#pragma unroll 1
    for (int step = 0; step < tile_.n_steps; step++, visit = tile_.after(visit)) {
      if (until_keys-- == 0) load_keys();
      load_Q(visit);
      load_dO(visit);
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
    const RowOffset place = tile_.sequence.keys();
    const int length = tile_.sequence.seq_len_k(), head = tile_.head_kv;
    // A block with one tile loads K and V once.
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

  FLASHSMITH_DEVICE void load_Q(const QueryVisit &visit) {
    const ptx::shared_address shared = ptx::shared_memory();
    const BufferBarriers barriers = Barriers::Q(position_.Q.buffer);
    ptx::mbarrier_wait_parity(barriers.empty, position_.Q.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::query_tile_bytes + kStatisticsBytes);
    load_tile<Traits, Traits::query_box_bytes>(
        shared + Traits::Q_offset + position_.Q.buffer * Traits::query_tile_bytes, args_.Q_map,
        barriers.full, visit.block * Traits::B_r, rows(visit.head, args_.Q_batch_rows));
    ptx::bulk_load(
        shared + Traits::statistics_offset + position_.Q.buffer * kStatisticsBytes,
        statistics_of(args_.gradient, tile_.first_block(args_.gradient) + visit.block, visit.head),
        kStatisticsBytes, barriers.full);
    position_.Q.advance();
  }

  FLASHSMITH_DEVICE void load_dO(const QueryVisit &visit) {
    const BufferBarriers barriers = Barriers::dO(position_.dO.buffer);
    ptx::mbarrier_wait_parity(barriers.empty, position_.dO.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::query_tile_bytes);
    load_tile<Traits, Traits::query_box_bytes>(
        ptx::shared_memory() + Traits::dO_offset + position_.dO.buffer * Traits::query_tile_bytes,
        args_.dO_map, barriers.full, visit.block * Traits::B_r,
        rows(visit.head, args_.dO_batch_rows));
    position_.dO.advance();
  }
};

// Warp 0 loads, the warps after it add dQ, and the one after these converts it.
template <typename Traits>
FLASHSMITH_DEVICE void produce(const Sm90BackwardKernelArgs &args) {
  const int warp = ptx::warp_index();
  if constexpr (Traits::converts_early) {
    if (warp == Traits::dQ_adders + 1) return EarlyConverter<Traits>(args).run();
  }
  if (!ptx::elect_one()) return;
  if (warp == 0) {
    ProducerPosition<Traits> position;
    for_each_tile<Traits>(args, DrawnTiles<Traits>(args), [&](const KeyTile<Traits> &tile) {
      if (tile.n_steps > 0) KeyTileProducer<Traits>(args, tile, position).run();
    });
  } else if (warp <= Traits::dQ_adders) {
    AdderPositions<Traits> positions;
    for_each_tile<Traits>(args, AnnouncedTiles<Traits, false>(args),
                          [&](const KeyTile<Traits> &tile) {
                            if (tile.n_steps > 0) add_dQ<Traits>(args, tile, warp - 1, positions);
                            if constexpr (Traits::converts_early) finish_tile<Traits>(args, tile);
                          });
  }
}

}  // namespace flashsmith::sm90
