// The list of split work tiles for the combine kernel. The block that has the first keys of a work
// tile writes its entry. With equal splits every work tile has a place; with stream-K every block
// has one, since at most one work tile that is split begins in a block.
#pragma once

#include <cstring>

#include "flashsmith/attention/key_splits.cuh"
#include "flashsmith/ptx/global_exchange.cuh"

namespace flashsmith {

// Its functions are called by one thread, except `get`.
class SplitTiles {
  const SplitArgs &args_;

  FLASHSMITH_DEVICE bool has_all_tiles() const { return args_.is_even; }

  FLASHSMITH_DEVICE void put(int place, const KeySplit &split) const {
    if (args_.split_tiles == nullptr) return;
    uint32_t words[kSplitWords];
    std::memcpy(words, &split, sizeof(KeySplit));
#pragma unroll
    for (int i = 0; i < kSplitWords; i++) {
      ptx::thread_store_global_4(args_.split_tiles + place * kSplitWords + i, words[i]);
    }
  }

 public:
  FLASHSMITH_DEVICE explicit SplitTiles(const SplitArgs &args) : args_(args) {}

  // Called before `add`: clears the block's place.
  FLASHSMITH_DEVICE void begin() const {
    if (!has_all_tiles()) put(ptx::block_index_x(), KeySplit{});
  }
  FLASHSMITH_DEVICE void add(const KeySplit &split) const {
    if (split.index != 0) return;
    if (has_all_tiles()) {
      put(split.tile, split);
    } else if (split.count > 1) {
      put(ptx::block_index_x(), split);
    }
  }
  // Returns the split at a place. Its `count` is at most 1 if there is no work tile, or it is not
  // split.
  FLASHSMITH_DEVICE KeySplit get(int place) const {
    uint32_t words[kSplitWords];
#pragma unroll
    for (int i = 0; i < kSplitWords; i++) {
      words[i] = ptx::thread_load_global_cg_4(args_.split_tiles + place * kSplitWords + i);
    }
    KeySplit split;
    std::memcpy(&split, words, sizeof(KeySplit));
    return split;
  }
};

}  // namespace flashsmith
