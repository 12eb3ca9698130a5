// Loads a block of K or V in several boxes, each from another place.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm90/pipeline.cuh"
#include "flashsmith/sm90/rows.cuh"

namespace flashsmith::sm90 {

// Does the work of load_block (producer.cuh) for the keys from `key` on, with a whole warp: each
// lane looks up and copies one box. All lanes call before() between the two.
template <typename Traits, BoxedRows kTile, typename Keys, typename Before>
FLASHSMITH_DEVICE void load_boxes(ptx::shared_address buffer, const BufferBarriers &barriers,
                                  int parity, const ptx::TensorMap &map, int key, const Keys &keys,
                                  Before before) {
  const int first = ptx::lane_index() * keys.box_rows();
  const Rows rows = first < Traits::B_c ? keys.box(key + first) : Rows{};
  before();
  if (ptx::lane_index() == 0) {
    ptx::mbarrier_wait_parity(barriers.empty, parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, kTile.bytes);
  }
  ptx::warp_sync();
  if (first >= Traits::B_c) return;
#pragma unroll
  for (int box = 0; box < kTile.n_boxes; box++) {
    load_rows<Traits>(buffer + box * kTile.box_bytes + first * kTile.row_bytes, map, barriers.full,
                      box * kTile.columns, 0, rows);
  }
}

}  // namespace flashsmith::sm90
