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

// Returns whether the loading thread announces the first tiles, too.
template <typename Traits>
FLASHSMITH_DEVICE bool announces_first_tiles(const GradientArgs &args) {
  return Traits::announces_blocks || draws_first_tiles<Traits>(args);
}

// Loads a word that a warp, or one thread, has been told.
template <bool kWarp>
FLASHSMITH_DEVICE int load_word(ptx::shared_address place) {
  const int word = static_cast<int>(ptx::thread_load_shared_4(place));
  return kWarp ? ptx::uniform(word) : word;
}

// Stores and loads a block as an entry of three words. There are fewer than 2^16 heads, parts and
// sequences, because grids have that limit.
FLASHSMITH_DEVICE void store_block(ptx::shared_address entry, const KeyBlock &keys) {
  constexpr int kHalf = 16;
  ptx::thread_store_shared_4(entry, keys.block);
  ptx::thread_store_shared_4(entry + 4, keys.head_kv | keys.part << kHalf);
  ptx::thread_store_shared_4(entry + 8, keys.batch | keys.rank << kHalf);
}
template <bool kWarp>
FLASHSMITH_DEVICE KeyBlock load_block(ptx::shared_address entry) {
  constexpr int kHalf = 16, kLow = (1 << kHalf) - 1;
  const int block = load_word<kWarp>(entry);
  const auto heads = static_cast<unsigned>(load_word<kWarp>(entry + 4)),
             sequence = static_cast<unsigned>(load_word<kWarp>(entry + 8));
  return {block, static_cast<int>(heads & kLow), static_cast<int>(sequence & kLow),
          static_cast<int>(heads >> kHalf), static_cast<int>(sequence >> kHalf)};
}

// The tiles as the loading thread draws them. It announces them to the other warps through entries
// in shared memory: their indices, or, if sequences are varlen, their blocks, which take long to
// find in a table.
template <typename Traits>
class DrawnTiles {
  const Sm90BackwardKernelArgs &args_;
  RingPosition<kTileEntries> entry_;
  int index_ = 0;
  KeyBlock block_;

 public:
  FLASHSMITH_DEVICE explicit DrawnTiles(const Sm90BackwardKernelArgs &args) : args_(args) {}

  // The following functions take the first tile and the next one.
  FLASHSMITH_DEVICE void begin() {
    const bool draws = draws_first_tiles<Traits>(args_.gradient) && queue() != nullptr;
    index_ = draws ? draw() : ptx::block_index_x();
    if (announces_first_tiles<Traits>(args_.gradient)) return announce();
    if constexpr (Traits::has_key_table) block_ = KeyBlock::find<Traits>(args_, index_);
  }
  FLASHSMITH_DEVICE void advance() {
    index_ = queue() == nullptr ? index_ + ptx::grid_size_x() : draw();
    announce();
  }

  FLASHSMITH_DEVICE bool is_end() const {
    return Traits::has_key_table ? block_.is_end() : index_ >= KeyBlock::all<Traits>(args_);
  }
  FLASHSMITH_DEVICE KeyBlock block() const {
    return Traits::has_key_table ? block_ : KeyBlock::at<Traits>(args_, index_);
  }

 private:
  FLASHSMITH_DEVICE uint32_t *queue() const { return args_.gradient.queue; }

  FLASHSMITH_DEVICE int draw() const {
    const int before = draws_first_tiles<Traits>(args_.gradient) ? 0 : ptx::grid_size_x();
    return before + static_cast<int>(ptx::thread_atomic_add(queue(), 1));
  }

  FLASHSMITH_DEVICE void announce() {
    if constexpr (Traits::announces_blocks) block_ = KeyBlock::find<Traits>(args_, index_);
    const BufferBarriers barriers = BackwardBarriers<Traits>::entry(entry_.buffer);
    ptx::mbarrier_wait_parity(barriers.empty, entry_.parity ^ 1);
    const ptx::shared_address entry = tile_entry<Traits>(entry_.buffer);
    if constexpr (Traits::announces_blocks) {
      store_block(entry, block_);
    } else {
      ptx::thread_store_shared_4(entry, index_);
    }
    ptx::mbarrier_arrive(barriers.full);
    entry_.advance();
  }
};

// The same tiles as the other warps read them: whole warps, or one thread of a warp.
template <typename Traits, bool kWarp>
class AnnouncedTiles {
  const Sm90BackwardKernelArgs &args_;
  unsigned n_announced_ = 0;
  int index_ = 0;
  KeyBlock block_;

 public:
  FLASHSMITH_DEVICE explicit AnnouncedTiles(const Sm90BackwardKernelArgs &args) : args_(args) {}

  FLASHSMITH_DEVICE void begin() {
    if (announces_first_tiles<Traits>(args_.gradient)) return advance();
    index_ = ptx::block_index_x();
    if constexpr (Traits::has_key_table) block_ = KeyBlock::find<Traits>(args_, index_);
  }
  FLASHSMITH_DEVICE void advance() {
    const int entry = n_announced_ % kTileEntries, parity = n_announced_ / kTileEntries % 2;
    const BufferBarriers barriers = BackwardBarriers<Traits>::entry(entry);
    ptx::mbarrier_wait_parity(barriers.full, parity);
    if constexpr (Traits::announces_blocks) {
      block_ = load_block<kWarp>(tile_entry<Traits>(entry));
    } else {
      index_ = load_word<kWarp>(tile_entry<Traits>(entry));
    }
    n_announced_++;
    if (!is_end()) free(barriers.empty);  // nothing follows the end
  }

  FLASHSMITH_DEVICE bool is_end() const {
    return Traits::has_key_table ? block_.is_end() : index_ >= KeyBlock::all<Traits>(args_);
  }
  FLASHSMITH_DEVICE KeyBlock block() const {
    return Traits::has_key_table ? block_ : KeyBlock::at<Traits>(args_, index_);
  }

 private:
  static FLASHSMITH_DEVICE void free(ptx::shared_address barrier) {
    if constexpr (kWarp) ptx::warp_sync();
    if (!kWarp || ptx::thread_index() % kWarpSize == 0) ptx::mbarrier_arrive(barrier);
  }
};

// Calls `work` for the block's tiles, which `tiles` has.
template <typename Traits, typename Tiles, typename Work>
FLASHSMITH_DEVICE void for_each_tile(const Sm90BackwardKernelArgs &args, Tiles tiles,
                                     const Work &work) {
  for (tiles.begin(); !tiles.is_end(); tiles.advance()) {
    const KeyTile<Traits> tile(args, tiles.block());
    if (tile.key < tile.sequence.seq_len_k()) work(tile);
    if constexpr (!Traits::config.persistent) return;
  }
}

}  // namespace flashsmith::sm90
