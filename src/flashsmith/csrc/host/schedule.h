// The launch that lists the tiles of sequences with lengths of their own
// (attention/tile_table.cuh).
#pragma once

#include "host/plan.h"

namespace flashsmith {

template <typename Args, typename Function>
Launch schedule_launch(Function function, int n_sequences) {
  constexpr unsigned kWarps = 8, kThreads = kWarps * 32;
  return {.kernel = "schedule_kernel",
          .function = reinterpret_cast<const void *>(function),
          .call = call<Args>,
          .grid = {(static_cast<unsigned>(n_sequences) + kWarps - 1) / kWarps, 1, 1},
          .cluster = 1,
          .threads = kThreads,
          .shared_memory_bytes = 0};
}

}  // namespace flashsmith
