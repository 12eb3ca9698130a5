// What rows may not see: keys beyond the sequence and, causal, keys that lie ahead.
#pragma once

#include <cmath>

#include "flashsmith/sm90/block_range.cuh"
#include "flashsmith/sm90/gemm.cuh"

namespace flashsmith::sm90 {

// Sets to -inf the scores that the mask removes. `row`: of this lane's first accumulators, in the
// sequence; `block`: of K.
template <typename Traits>
FLASHSMITH_DEVICE void mask(SAccumulator<Traits> &S, const Sm90ForwardKernelArgs &args, int row,
                            int block) {
  // Columns are counted from this lane's first.
  const int first_column = block * Traits::B_c + ptx::thread_index() % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int last = args.seq_len_k - 1;
    if constexpr (Traits::causal) {
      const int visible = row + half * 8 + causal_offset(args);
      last = visible < last ? visible : last;
    }
    last -= first_column;
#pragma unroll
    for (int i = 0; i < Traits::B_c / 4; i++) {
      const int column = i / 2 * 8 + i % 2;
      if (column > last) S[i / 2 * 4 + half * 2 + i % 2] = -INFINITY;
    }
  }
}

}  // namespace flashsmith::sm90
