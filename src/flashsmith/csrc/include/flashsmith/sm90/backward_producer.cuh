// The threads of the backward that copy: they load K and V of the tile, and blocks of Q and dO as
// stages become free, and add dQ of a block to the sums.
#pragma once

#include "flashsmith/ptx/reduction.cuh"
#include "flashsmith/ptx/tma.cuh"
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

// The positions of an adding thread in its buffers, across tiles.
struct AdderPosition {
  RingPosition<1> dQ, sums;
};

// Adds a warpgroup's dQ, block by block, to the sums; or loads the sums back, if the warpgroup
// finishes dQ.
template <typename Traits>
class dQAdder {
  using Barriers = BackwardBarriers<Traits>;

  const GradientArgs &args_;
  const KeyTile<Traits> &tile_;
  AdderPosition &position_;
  const int warpgroup_, part_;
  // The first block of queries that sees no keys before these, and the first that sees keys after
  // these.
  const int first_alone_, first_shared_;

 public:
  FLASHSMITH_DEVICE dQAdder(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile,
                            int warpgroup, AdderPosition &position)
      : args_(args.gradient),
        tile_(tile),
        position_(position),
        warpgroup_(warpgroup),
        part_(Traits::shares_dQ ? warpgroup : 0),
        first_alone_(tile.first_alone(args.problem)),
        first_shared_(tile.first_shared(args.problem)) {}

  FLASHSMITH_DEVICE void run() const {
#pragma unroll 1
    for (int step = Traits::shares_dQ ? 0 : warpgroup_; step < tile_.n_steps;
         step += Traits::dQ_period) {
      const QueryVisit visit = tile_.visit_of(step);
      if constexpr (Traits::dQ_accumulation == DQAccumulation::ordered) {
        take_turn(visit);
      } else {
        wait_for_dQ();
        ptx::bulk_add(sums(visit), place(), Traits::dQ_bytes);
        commit_and_free();
      }
    }
  }

 private:
  FLASHSMITH_DEVICE ptx::shared_address place() const {
    return ptx::shared_memory() + Traits::dQ_offset + warpgroup_ * Traits::dQ_bytes;
  }
  FLASHSMITH_DEVICE int in_workspace(const QueryVisit &visit) const {
    return tile_.first_block(args_) + visit.block;
  }
  FLASHSMITH_DEVICE float *sums(const QueryVisit &visit) const {
    return sums_of<Traits::d_head>(args_, in_workspace(visit), visit.head) +
           part_ * Traits::dQ_floats;
  }

  FLASHSMITH_DEVICE uint32_t *summed(const QueryVisit &visit) const {
    return summed_of<Traits::dQ_parts>(args_, in_workspace(visit), visit.head) + part_;
  }
  FLASHSMITH_DEVICE int n_before() const { return tile_.key / Traits::B_c; }  // blocks of keys

  FLASHSMITH_DEVICE void take_turn(const QueryVisit &visit) const {
    const bool first = visit.block >= first_alone_, last = visit.block < first_shared_;
    if (!last) {
      add_in_turn(visit, first);
    } else if (!first) {
      fetch(visit);
    }
  }

  // Adds the part when it is these keys' turn; the first block of keys stores it. The sum has to be
  // in memory before the next turn: it is not enough that the copy has read its source.
  FLASHSMITH_DEVICE void add_in_turn(const QueryVisit &visit, bool first) const {
    wait_for_dQ();
    if (first) {
      ptx::bulk_store(sums(visit), place(), Traits::dQ_bytes);
    } else {
      wait_for_turn(visit);
      ptx::bulk_add(sums(visit), place(), Traits::dQ_bytes);
    }
    commit_and_free();
    ptx::tma_store_wait_group<0>();
    ptx::release_global(summed(visit), n_before() + 1);
  }

  // Waits for the previous block of keys, which leaves its number.
  FLASHSMITH_DEVICE void wait_for_turn(const QueryVisit &visit) const {
    ptx::wait_global(summed(visit), n_before());
    ptx::fence_proxy_async_global();
  }

  FLASHSMITH_DEVICE void fetch(const QueryVisit &visit) const {
    const BufferBarriers barriers = Barriers::sums(warpgroup_);
    wait_for_turn(visit);
    ptx::mbarrier_wait_parity(barriers.empty, position_.sums.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::dQ_bytes);
    ptx::bulk_load(place(), sums(visit), Traits::dQ_bytes, barriers.full);
    position_.sums.advance();
  }

  FLASHSMITH_DEVICE void wait_for_dQ() const {
    ptx::mbarrier_wait_parity(Barriers::dQ(warpgroup_).full, position_.dQ.parity);
    position_.dQ.advance();
  }
  // Commits the copy, and frees the buffer once the copy has read it.
  FLASHSMITH_DEVICE void commit_and_free() const {
    ptx::tma_store_commit_group();
    ptx::tma_store_wait_group_read<0>();
    ptx::mbarrier_arrive(Barriers::dQ(warpgroup_).empty);
  }
};

// Warp 0 loads; warp 1 + i adds dQ of warpgroup i.
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
    AdderPosition position;
    for_each_tile<Traits>(args, AnnouncedTiles<Traits, false>(args),
                          [&](const KeyTile<Traits> &tile) {
                            if (tile.n_steps > 0)
                              dQAdder<Traits>(args, tile, warp - 1, position).run();
                          });
  }
}

}  // namespace flashsmith::sm90
