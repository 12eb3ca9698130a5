// The launch that lists the tiles of varlen sequences, and the condition for it
// (attention/tile_table.cuh).
#pragma once

#include "host/plan.h"

namespace flashsmith {

// Returns whether a launch lists the tiles. If a warp has a lane for each sequence, each block can
// find its own tile instead: that is as fast as a list in up to two waves of blocks, and saves the
// launch.
constexpr bool lists_tiles(int64_t n_tiles, int n_sequences, int num_sms) {
  constexpr int kMaxSequences = 32, kMaxWaves = 2;
  return n_tiles > kMaxWaves * num_sms || n_sequences > kMaxSequences;
}

template <typename Args>
Launch schedule_launch(KernelFunction function, int n_sequences) {
  constexpr unsigned kWarps = 8, kThreads = kWarps * 32;
  return {.function = function,
          .call = call<Args>,
          .grid = {(static_cast<unsigned>(n_sequences) + kWarps - 1) / kWarps, 1, 1},
          .cluster = 1,
          .threads = kThreads,
          .shared_memory_bytes = 0};
}

}  // namespace flashsmith
