// The tiles of a thread block of the backward: one or, if blocks are persistent, one after the
// other from a queue that all blocks share.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/uniform.cuh"
#include "flashsmith/sm90/backward_pipeline.cuh"
#include "flashsmith/sm90/key_tile.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
FLASHSMITH_DEVICE ptx::shared_address tile_entry(int entry) {
  return ptx::shared_memory() + Traits::entries_offset + entry * kEntryBytes;
}

// Returns whether a block draws its first tile, too, which else has the block's index. It does
// where blocks wait for others: for their turn to add to dQ, or for what they have to convert. A
// block that waits for another must be sure that the other runs. If all tiles are drawn, the tiles
// before a tile are finished or being worked on, and the first of these waits for none.
template <typename Traits>
FLASHSMITH_DEVICE bool draws_first_tiles(const GradientArgs &args) {
  if constexpr (Traits::converts_early) return args.n_early > 0;
  return Traits::dQ_accumulation == DQAccumulation::ordered;
}

// The indices of tiles as the loading thread draws them. It announces them to the other warps
// through entries in shared memory.
template <typename Traits>
class DrawnTiles {
  const GradientArgs &args_;
  RingPosition<kTileEntries> entry_;

 public:
  FLASHSMITH_DEVICE explicit DrawnTiles(const Sm90BackwardKernelArgs &args)
      : args_(args.gradient) {}

  // The following functions return the first index and the next one; an index beyond the last tile
  // is the end.
  FLASHSMITH_DEVICE int first() {
    if (!draws_first_tiles<Traits>(args_)) return ptx::block_index_x();
    return tell(args_.queue == nullptr ? ptx::block_index_x() : draw());
  }
  FLASHSMITH_DEVICE int after(int index) {
    return tell(args_.queue == nullptr ? index + ptx::grid_size_x() : draw());
  }

 private:
  FLASHSMITH_DEVICE int draw() const {
    const int before = draws_first_tiles<Traits>(args_) ? 0 : ptx::grid_size_x();
    return before + static_cast<int>(ptx::thread_atomic_add(args_.queue, 1));
  }

  FLASHSMITH_DEVICE int tell(int index) {
    const BufferBarriers barriers = BackwardBarriers<Traits>::entry(entry_.buffer);
    ptx::mbarrier_wait_parity(barriers.empty, entry_.parity ^ 1);
    ptx::thread_store_shared_4(tile_entry<Traits>(entry_.buffer), index);
    ptx::mbarrier_arrive(barriers.full);
    entry_.advance();
    return index;
  }
};

// The same indices as the other warps read them: whole warps, or one thread of a warp.
template <typename Traits, bool kWarp>
class AnnouncedTiles {
  const Sm90BackwardKernelArgs &args_;
  unsigned n_announced_ = 0;

 public:
  FLASHSMITH_DEVICE explicit AnnouncedTiles(const Sm90BackwardKernelArgs &args) : args_(args) {}

  FLASHSMITH_DEVICE int first() {
    if (!draws_first_tiles<Traits>(args_.gradient)) return ptx::block_index_x();
    return after(0);
  }
  FLASHSMITH_DEVICE int after(int) {
    const int entry = n_announced_ % kTileEntries, parity = n_announced_ / kTileEntries % 2;
    const BufferBarriers barriers = BackwardBarriers<Traits>::entry(entry);
    ptx::mbarrier_wait_parity(barriers.full, parity);
    int index = static_cast<int>(ptx::thread_load_shared_4(tile_entry<Traits>(entry)));
    if constexpr (kWarp) index = ptx::uniform(index);
    n_announced_++;
    if (index < KeyBlock::all<Traits>(args_)) free(barriers.empty);  // nothing follows the end
    return index;
  }

 private:
  static FLASHSMITH_DEVICE void free(ptx::shared_address barrier) {
    if constexpr (kWarp) ptx::warp_sync();
    if (!kWarp || ptx::thread_index() % kWarpSize == 0) ptx::mbarrier_arrive(barrier);
  }
};

// Calls `work` for the block's tiles, whose indices `tiles` returns.
template <typename Traits, typename Tiles, typename Work>
FLASHSMITH_DEVICE void for_each_tile(const Sm90BackwardKernelArgs &args, Tiles tiles,
                                     const Work &work) {
  for (int index = tiles.first(); index < KeyBlock::all<Traits>(args); index = tiles.after(index)) {
    const KeyTile<Traits> tile(args, KeyBlock::at<Traits>(args, index));
    if (tile.key < tile.sequence.seq_len_k()) work(tile);
    if constexpr (!Traits::config.persistent) return;
  }
}

}  // namespace flashsmith::sm90
