// The list of all work tiles with their splits, for the combine kernel. The block that has the
// first keys of a work tile writes its entry.
#pragma once

#include <cstring>

#include "flashsmith/attention/work_tiles.cuh"
#include "flashsmith/ptx/global_exchange.cuh"

namespace flashsmith {

// `add` is called by one thread.
class SplitTiles {
  uint32_t *const words_;

 public:
  explicit FLASHSMITH_DEVICE SplitTiles(const SplitArgs &args) : words_(args.split_tiles) {}

  // Lists the split's work tile if it has the first keys, and a kernel combines.
  FLASHSMITH_DEVICE void add(const KeySplit &split) const {
    if (split.index != 0 || words_ == nullptr) return;
    uint32_t words[kSplitWords];
    std::memcpy(words, &split, sizeof(KeySplit));
#pragma unroll
    for (int i = 0; i < kSplitWords; i++) {
      ptx::thread_store_global_4(words_ + split.tile * kSplitWords + i, words[i]);
    }
  }

  // Returns the first split of a work tile.
  FLASHSMITH_DEVICE KeySplit first_of(int tile) const {
    uint32_t words[kSplitWords];
#pragma unroll
    for (int i = 0; i < kSplitWords; i++) {
      words[i] = ptx::thread_load_global_cg_4(words_ + tile * kSplitWords + i);
    }
    KeySplit split;
    std::memcpy(&split, words, sizeof(KeySplit));
    return split;
  }
};

}  // namespace flashsmith
