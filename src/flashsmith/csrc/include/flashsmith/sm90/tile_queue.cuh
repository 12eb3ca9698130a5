// How a thread block comes to its next tile: from a queue, by stride, or never.
#pragma once

#include "flashsmith/attention/tile_order.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm90/pipeline.cuh"

namespace flashsmith::sm90 {

// The indices of a block's tiles, as its producer draws them. From a queue, all warps learn of them
// through two entries in shared memory.
template <typename Traits>
class TileProducer {
  const Sm90ForwardKernelArgs &args_;
  RingPosition<kQueueEntries> entry_;
  int tile_index_ = ptx::block_index_x();

 public:
  FLASHSMITH_DEVICE explicit TileProducer(const Sm90ForwardKernelArgs &args) : args_(args) {}

  // The tile to work on; an index beyond the last says that there is no further.
  FLASHSMITH_DEVICE int tile_index() const { return tile_index_; }

  // Tells the consumers the index.
  FLASHSMITH_DEVICE void announce() {
    if constexpr (!Traits::config.dynamic_queue) return;
    ptx::thread_store_shared_4(
        ptx::shared_memory() + Traits::queue_offset + entry_.buffer * sizeof(uint32_t),
        tile_index_);
    ptx::mbarrier_arrive(Barriers<Traits>::queue(entry_.buffer));
    entry_.advance();
  }

  // The index after this. The caller asks early: a draw takes as long as a load from global memory.
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

  // The last block to get here leaves the queue as it was found.
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
  // Few tiles of sequences with lengths of their own are not drawn, but found (tile_order.cuh).
  FLASHSMITH_DEVICE bool has_one_tile() const { return !TileTable{args_.problem.tiles}.is_made(); }
};

// The same indices, as a consumer warp learns of them.
template <typename Traits>
class TileConsumer {
  const Sm90ForwardKernelArgs &args_;
  RingPosition<kQueueEntries> entry_;
  int tile_index_ = ptx::block_index_x();

 public:
  FLASHSMITH_DEVICE explicit TileConsumer(const Sm90ForwardKernelArgs &args) : args_(args) {}

  // The next index; one beyond the last is the end.
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
    // One lane will free Q's buffer, and with it the entry: all lanes must have read that. With
    // ping-pong they meet at the turn before.
    if constexpr (!Traits::config.ping_pong) ptx::warp_sync();
    entry_.advance();
    return tile_index;
  }
};

}  // namespace flashsmith::sm90
