// What rows may not see: keys beyond the sequence and, causal, keys that lie ahead.
#pragma once

#include <cmath>

#include "flashsmith/hopper/gemm.cuh"
#include "flashsmith/hopper/tile_schedule.cuh"

namespace flashsmith {

// Sets to -inf the scores that the mask removes. `row`: of this lane's first accumulators, in the
// sequence; `block`: of K.
template <typename Kernel>
FLASHSMITH_DEVICE void mask(SAccumulator<Kernel> &S, const HopperForwardKernelArgs &args, int row,
                            int block) {
  // Columns are counted from this lane's first.
  const int first_column = block * Kernel::B_c + ptx::thread_index() % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int last = args.seq_len_k - 1;
    if constexpr (Kernel::causal) {
      const int visible = row + half * 8 + causal_offset(args);
      last = visible < last ? visible : last;
    }
    last -= first_column;
#pragma unroll
    for (int i = 0; i < Kernel::B_c / 4; i++) {
      const int column = i / 2 * 8 + i % 2;
      if (column > last) S[i / 2 * 4 + half * 2 + i % 2] = -INFINITY;
    }
  }
}

}  // namespace flashsmith
