// The producer warp of paged K and V: each lane looks up and copies a box of a block, and the first
// lane does the work of the producer thread without pages (producer.cuh).
#pragma once

#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/ptx/shuffle.cuh"
#include "flashsmith/sm90/boxes.cuh"
#include "flashsmith/sm90/paged_keys.cuh"
#include "flashsmith/sm90/producer.cuh"

namespace flashsmith::sm90 {

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
    // All lanes read the block's table entry in shared memory between two announcements of the
    // first lane.
    const bool is_found = !TileTable{problem.tiles}.is_made();
    if (is_found) ptx::warp_sync();
    const WorkTile tile = tile_at<Traits>(problem, tiles.tile_index());
    if (is_found) ptx::warp_sync();
    // The divisor is recomputed, so that nothing of the division stays in a register across tiles.
    const int head = tile.head / (problem.n_heads / ptx::recomputed(problem.n_heads_kv));
    const typename Traits::Sequence sequence(problem, tile.batch);
    const auto [begin, end] = KV_blocks_of_tile<Traits>(args, sequence, tile);
    const int first_key =
        Traits::Mask::first(problem, sequence, tile_row_begin<Traits>(args, tile));
    const auto keys = [&](int batch_rows) {
      return PagedKeys(args.pages, tile.batch, first_key, sequence.seq_len_k(), head, batch_rows);
    };
    const PagedKeys K = keys(args.K_batch_rows), V = keys(args.V_batch_rows);
    if (leads && Traits::Q_in_registers) load_Q<Traits>(Q_buffer.parity, args, tile, sequence);
    for (int block = end - 1; block >= begin; block--, stage.advance()) {
      const int key = block * Traits::B_c;
      load_boxes<Traits, Traits::K_tile>(shared + Traits::K_offset + stage.buffer * Traits::K_bytes,
                                         Barriers<Traits>::K(stage.buffer), stage.parity,
                                         args.K_map, key, K, [] {});
      if (leads && !Traits::Q_in_registers && block == end - 1) {
        load_Q<Traits>(Q_buffer.parity, args, tile, sequence);
      }
      load_boxes<Traits, Traits::V_tile>(shared + Traits::V_offset + stage.buffer * Traits::V_bytes,
                                         Barriers<Traits>::V(stage.buffer), stage.parity,
                                         args.V_map, key, V, [] {});
    }
    Q_buffer.advance();
    // The tile is drawn no sooner, because lanes have no register for it. Meanwhile the consumers
    // have blocks to work on.
    tiles.advance(ptx::shuffle_from(leads ? tiles.draw() : 0, 0));
  }
  if (leads) tiles.finish();
}

}  // namespace flashsmith::sm90
