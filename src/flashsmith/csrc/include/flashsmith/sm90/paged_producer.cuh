// The warp that loads where K and V lie in pages: its lanes look up and copy a box of a block each,
// and its first lane does what one thread does elsewhere (producer.cuh).
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/ptx/shuffle.cuh"
#include "flashsmith/sm90/paged_keys.cuh"
#include "flashsmith/sm90/producer.cuh"

namespace flashsmith::sm90 {

// As load_block, of the keys from `key` on.
template <typename Traits, BoxedRows kTile>
FLASHSMITH_DEVICE void load_boxes(ptx::shared_address buffer, const BufferBarriers &barriers,
                                  int parity, const ptx::TensorMap &map, int key,
                                  const PagedKeys &keys) {
  const int first = ptx::lane_index() * keys.box_rows();
  const Rows rows = first < Traits::B_c ? keys.box(key + first) : Rows{};
  if (ptx::thread_index() == 0) {
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

template <typename Traits>
FLASHSMITH_DEVICE void produce_from_pages(const Sm90ForwardKernelArgs &args) {
  const ptx::shared_address shared = ptx::shared_memory();
  const bool leads = ptx::thread_index() == 0;
  const ProblemArgs &problem = args.problem;
  TileProducer<Traits> tiles(args);
  RingPosition<Traits::n_stages> stage;
  RingPosition<1> Q_buffer;
  while (true) {
    if (leads) tiles.announce();
    if (tiles.tile_index() >= n_tiles<Traits>(problem)) break;
    const WorkTile tile = tile_at<Traits>(problem, tiles.tile_index());
    // From tile to tile nothing of the division stays in a register.
    const int head = tile.head / (problem.n_heads / ptx::recomputed(problem.n_heads_kv));
    const typename Traits::Sequence sequence(problem, tile.batch);
    const auto [begin, end] = KV_blocks_of_tile<Traits>(problem, sequence, tile);
    const int first_key = Traits::Mask::first(problem, sequence, tile_row_begin<Traits>(tile));
    const auto keys = [&](int batch_rows) {
      return PagedKeys(args.pages, tile.batch, first_key, sequence.seq_len_k(), head, batch_rows);
    };
    const PagedKeys K = keys(args.K_batch_rows), V = keys(args.V_batch_rows);
    if (leads && Traits::Q_in_registers) load_Q<Traits>(Q_buffer.parity, args, tile, sequence);
    for (int block = end - 1; block >= begin; block--, stage.advance()) {
      const int key = block * Traits::B_c;
      load_boxes<Traits, Traits::K_tile>(shared + Traits::K_offset + stage.buffer * Traits::K_bytes,
                                         Barriers<Traits>::K(stage.buffer), stage.parity,
                                         args.K_map, key, K);
      if (leads && !Traits::Q_in_registers && block == end - 1) {
        load_Q<Traits>(Q_buffer.parity, args, tile, sequence);
      }
      load_boxes<Traits, Traits::V_tile>(shared + Traits::V_offset + stage.buffer * Traits::V_bytes,
                                         Barriers<Traits>::V(stage.buffer), stage.parity,
                                         args.V_map, key, V);
    }
    Q_buffer.advance();
    // Drawn no sooner: lanes have no register for it. The consumers have blocks to go on with.
    tiles.advance(ptx::shuffle_from(leads ? tiles.draw() : 0, 0));
  }
  if (leads) tiles.finish();
}

}  // namespace flashsmith::sm90
