// The producer thread of the split backward for dK and dV.
#pragma once

#include "flashsmith/ptx/reduction.cuh"
#include "flashsmith/sm90/backward_producer.cuh"
#include "flashsmith/sm90/key_tile.cuh"
#include "flashsmith/sm90/split_backward_pipeline.cuh"

namespace flashsmith::sm90 {

// Loads K and V of the tile, and blocks of Q with their statistics and of dO as stages become free.
template <typename Traits>
class dKdVProducer {
  using Barriers = dKdVBarriers<Traits>;
  using Memory = dKdVMemory<Traits>;

  const Sm90BackwardKernelArgs &args_;
  const KeyTile<Traits> &tile_;
  RingPosition<Traits::Q_stages> Q_stage_;
  RingPosition<Traits::dO_stages> dO_stage_;

 public:
  FLASHSMITH_DEVICE dKdVProducer(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile)
      : args_(args), tile_(tile) {}

  FLASHSMITH_DEVICE void run() {
    load_keys();
    QueryVisit visit = tile_.first_visit();
#pragma unroll 1
    for (int step = 0; step < tile_.n_steps; step++, visit = tile_.after(visit)) {
      load_Q(visit);
      load_dO(visit);
    }
    wait_for_cluster();
  }

 private:
  FLASHSMITH_DEVICE void load_keys() {
    const ptx::shared_address shared = ptx::shared_memory(), barrier = Barriers::keys();
    const RowOffset place = tile_.sequence.keys();
    const int length = tile_.sequence.seq_len_k(), head = tile_.head_kv;
    ptx::mbarrier_arrive_expect_tx(barrier, 2 * Traits::tile_bytes);
    load_tile<Traits, Traits::box_bytes>(shared + Memory::K, args_.K_map, barrier, tile_.key,
                                         {place, length, head, args_.K_batch_rows});
    load_tile<Traits, Traits::box_bytes>(shared + Memory::V, args_.V_map, barrier, tile_.key,
                                         {place, length, head, args_.V_batch_rows});
  }

  FLASHSMITH_DEVICE Rows rows(int head, int batch_rows) const {
    return {tile_.sequence.queries(), tile_.sequence.seq_len_q(), head, batch_rows};
  }

  // Loads a block of Q. Each thread block loads the statistics for itself.
  FLASHSMITH_DEVICE void load_Q(const QueryVisit &visit) {
    const ptx::shared_address shared = ptx::shared_memory();
    const BufferBarriers barriers = Barriers::Q(Q_stage_.buffer);
    ptx::mbarrier_wait_parity(barriers.empty, Q_stage_.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::tile_bytes + kStatisticsBytes);
    load_share<0>(shared + Memory::Q + Q_stage_.buffer * Traits::tile_bytes, args_.Q_map,
                  barriers.full, visit.block * Traits::B_r, rows(visit.head, args_.Q_batch_rows));
    ptx::bulk_load(
        shared + Memory::statistics + Q_stage_.buffer * kStatisticsBytes,
        statistics_of(args_.gradient, tile_.first_block(args_.gradient) + visit.block, visit.head),
        kStatisticsBytes, barriers.full);
    Q_stage_.advance();
  }

  FLASHSMITH_DEVICE void load_dO(const QueryVisit &visit) {
    const BufferBarriers barriers = Barriers::dO(dO_stage_.buffer);
    ptx::mbarrier_wait_parity(barriers.empty, dO_stage_.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::tile_bytes);
    load_share<1>(ptx::shared_memory() + Memory::dO + dO_stage_.buffer * Traits::tile_bytes,
                  args_.dO_map, barriers.full, visit.block * Traits::B_r,
                  rows(visit.head, args_.dO_batch_rows));
    dO_stage_.advance();
  }

  // Loads every other box of a tile, to all blocks of the cluster. Rank 0 loads the first box of Q,
  // rank 1 the first of dO, so that both load as many boxes.
  template <int kFirst>
  FLASHSMITH_DEVICE void load_share(ptx::shared_address tile, const ptx::TensorMap &map,
                                    ptx::shared_address barrier, int row, const Rows &rows) {
    if constexpr (Traits::cluster_size == 1) {
      load_tile<Traits, Traits::box_bytes>(tile, map, barrier, row, rows);
    } else {
#pragma unroll 1
      for (int box = (ptx::cluster_rank() + kFirst) % Traits::cluster_size; box < Traits::n_boxes;
           box += Traits::cluster_size) {
        load_rows_of_cluster<Traits>(tile + box * Traits::box_bytes, map, barrier,
                                     box * Traits::box_columns, row, rows);
      }
    }
  }

  // Waits for the last arrivals of the cluster's warps: other blocks make them in this block's
  // shared memory, so that it must not exit before.
  FLASHSMITH_DEVICE void wait_for_cluster() {
    if constexpr (Traits::cluster_size == 1) return;
    for (int i = 0; i < Traits::Q_stages; i++, Q_stage_.advance()) {
      ptx::mbarrier_wait_parity(Barriers::Q(Q_stage_.buffer).empty, Q_stage_.parity ^ 1);
    }
    for (int i = 0; i < Traits::dO_stages; i++, dO_stage_.advance()) {
      ptx::mbarrier_wait_parity(Barriers::dO(dO_stage_.buffer).empty, dO_stage_.parity ^ 1);
    }
  }
};

}  // namespace flashsmith::sm90
