// Which work tiles are split, for the kernel that combines: a block that has the first keys of one
// puts it down. Where each work tile has its splits whatever the lengths are, there is a place of
// each; with stream-K, one of each block, since at most one that is split begins with a
// block.
#pragma once

#include <cstring>

#include "flashsmith/attention/key_splits.cuh"
#include "flashsmith/ptx/global_exchange.cuh"

namespace flashsmith {

// By one thread, but for `get`.
class SplitTiles {
  const SplitArgs &args_;

  FLASHSMITH_DEVICE bool has_all_tiles() const { return args_.splits > 0 || args_.is_even; }

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

  // Before any other: none.
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
  // Of a place. That of a work tile which is not split, or none, has one split at most.
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
