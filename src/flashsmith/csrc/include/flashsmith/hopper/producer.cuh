// The thread that loads: tiles of Q, and blocks of K and V as buffers become free.
#pragma once

#include "flashsmith/hopper/pipeline.cuh"
#include "flashsmith/hopper/tile_schedule.cuh"
#include "flashsmith/ptx/tma.cuh"

namespace flashsmith {

// Fills a buffer with `rows` rows of a tensor from `row` on, once it is empty.
template <typename Kernel, int kBoxBytes>
FLASHSMITH_DEVICE void load_tile(ptx::shared_address buffer, const BufferBarriers &barriers,
                                 int parity, const ptx::TensorMap &map, int row, int head,
                                 int batch) {
  ptx::mbarrier_wait_parity(barriers.empty, parity ^ 1);
  ptx::mbarrier_arrive_expect_tx(barriers.full, kBoxBytes * Kernel::n_boxes);
#pragma unroll
  for (int box = 0; box < Kernel::n_boxes; box++) {
    ptx::tma_load(buffer + box * kBoxBytes, map, barriers.full, box * Kernel::box_columns, row,
                  head, batch);
  }
}

// Blocks of K and V are visited from the last to the first: those with a mask come first.
template <typename Kernel>
FLASHSMITH_DEVICE void produce(const HopperForwardKernelArgs &args) {
  const ptx::shared_address shared = ptx::shared_memory();
  const int queries_per_key_head = args.n_heads / args.n_heads_kv;
  TileProducer<Kernel> tiles(args);
  RingPosition<Kernel::n_stages> stage;
  RingPosition<1> Q_buffer;
  for (tiles.announce(); tiles.place() < n_tiles(args); tiles.announce()) {
    const int next = tiles.draw();
    const Tile tile = tile_at<Kernel>(args, tiles.place());
    const int head_kv = tile.head / queries_per_key_head;
    load_tile<Kernel, Kernel::Q_box_bytes>(shared + Kernel::Q_offset, Barriers<Kernel>::Q(),
                                           Q_buffer.parity, args.Q_map, tile.Q_block * Kernel::B_r,
                                           tile.head, tile.batch);
    Q_buffer.advance();
    int block = n_KV_blocks<Kernel>(args, (tile.Q_block + 1) * Kernel::B_r) - 1;
    for (; block >= 0; block--, stage.advance()) {
      const int row = block * Kernel::B_c, buffer = stage.buffer * Kernel::KV_bytes;
      load_tile<Kernel, Kernel::KV_box_bytes>(shared + Kernel::K_offset + buffer,
                                              Barriers<Kernel>::K(stage.buffer), stage.parity,
                                              args.K_map, row, head_kv, tile.batch);
      load_tile<Kernel, Kernel::KV_box_bytes>(shared + Kernel::V_offset + buffer,
                                              Barriers<Kernel>::V(stage.buffer), stage.parity,
                                              args.V_map, row, head_kv, tile.batch);
    }
    tiles.advance(next);
  }
  tiles.finish();
}

}  // namespace flashsmith
