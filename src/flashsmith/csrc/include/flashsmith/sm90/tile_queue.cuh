// A thread block gets its next tile from a queue, by a stride, or never.
#pragma once

#include "flashsmith/attention/tile_order.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm90/pipeline.cuh"

namespace flashsmith::sm90 {

// The indices of a block's tiles, as its producer draws them. With a queue, all warps read them
// from two entries in shared memory.
template <typename Traits>
class TileProducer {
  const Sm90ForwardKernelArgs &args_;
  RingPosition<kQueueEntries> entry_;
  int tile_index_ = ptx::block_index_x();

 public:
  FLASHSMITH_DEVICE explicit TileProducer(const Sm90ForwardKernelArgs &args) : args_(args) {}

  // Returns the tile to work on; an index beyond the last tile is the end.
  FLASHSMITH_DEVICE int tile_index() const { return tile_index_; }

  // Announces the index to the consumers.
  FLASHSMITH_DEVICE void announce() {
    if constexpr (!Traits::config.dynamic_queue) return;
    ptx::thread_store_shared_4(
        ptx::shared_memory() + Traits::queue_offset + entry_.buffer * sizeof(uint32_t),
        tile_index_);
    ptx::mbarrier_arrive(Barriers<Traits>::queue(entry_.buffer));
    entry_.advance();
  }

  // Returns the next index. The caller draws before it loads a tile's last block, because a draw
  // takes as long as a load from global memory. A block that drew when it begins a tile would keep
  // the next one from blocks that are free sooner.
  FLASHSMITH_DEVICE int draw() const {
    const int n_blocks = ptx::grid_size_x();
    if constexpr (Traits::Sequence::kVarlen) {
      if (has_one_tile()) return n_blocks;
    }
    if constexpr (Traits::config.dynamic_queue) {
      return n_blocks + static_cast<int>(ptx::thread_atomic_add(args_.problem.queue, 1));
    }
    return Traits::config.persistent ? tile_index_ + n_blocks : n_tiles<Traits>(args_.problem);
  }
  FLASHSMITH_DEVICE void advance(int drawn) { tile_index_ = drawn; }

  // Resets the queue, if this is the last block to finish.
  FLASHSMITH_DEVICE void finish() const {
    if constexpr (!Traits::config.dynamic_queue) return;
    if constexpr (Traits::Sequence::kVarlen) {
      if (has_one_tile()) return;
    }
    const uint32_t n_blocks = ptx::grid_size_x();
    if (ptx::thread_atomic_add(args_.problem.queue + 1, 1) != n_blocks - 1) return;
    ptx::thread_store_global_4(args_.problem.queue, 0);
    ptx::thread_store_global_4(args_.problem.queue + 1, 0);
  }

 private:
  // Returns whether no launch has made the tile table: the few varlen tiles are then not drawn, but
  // found (tile_order.cuh).
  FLASHSMITH_DEVICE bool has_one_tile() const { return !TileTable{args_.problem.tiles}.is_made(); }
};

// The same indices as a consumer warp reads them.
template <typename Traits>
class TileConsumer {
  const Sm90ForwardKernelArgs &args_;
  RingPosition<kQueueEntries> entry_;
  int tile_index_ = ptx::block_index_x();

 public:
  FLASHSMITH_DEVICE explicit TileConsumer(const Sm90ForwardKernelArgs &args) : args_(args) {}

  // Returns the next index; an index beyond the last tile is the end.
  FLASHSMITH_DEVICE int next() {
    if constexpr (!Traits::config.dynamic_queue) {
      const int tile_index = tile_index_;
      tile_index_ = Traits::config.persistent ? tile_index_ + ptx::grid_size_x()
                                              : n_tiles<Traits>(args_.problem);
      return tile_index;
    }
    ptx::mbarrier_wait_parity(Barriers<Traits>::queue(entry_.buffer), entry_.parity);
    const int tile_index = static_cast<int>(ptx::load_shared_4(
        ptx::shared_memory() + Traits::queue_offset + entry_.buffer * sizeof(uint32_t)));
    // One lane will free Q's buffer, and with it the entry, so all lanes must have read the entry.
    // With ping-pong they meet at the turn before.
    if constexpr (!Traits::config.ping_pong) ptx::warp_sync();
    entry_.advance();
    return tile_index;
  }
};

}  // namespace flashsmith::sm90
