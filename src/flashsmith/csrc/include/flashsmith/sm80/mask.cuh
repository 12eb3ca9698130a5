// The causal mask, and the blocks of K and V that it leaves to visit.
#pragma once

#include <cmath>

#include "flashsmith/sm80/gemm.cuh"

namespace flashsmith::sm80 {

// Which blocks of K and V the rows of one block of Q see: [0, end), of which [unmasked_end, end)
// hold keys that some row may not see. Queries and keys are equally many, so row i sees keys 0 to
// i.
template <typename Traits>
struct BlockRange {
  int end, unmasked_end;

  FLASHSMITH_DEVICE BlockRange(int Q_block, int n_KV_blocks)
      : end(n_KV_blocks), unmasked_end(n_KV_blocks) {
    if constexpr (Traits::causal) {
      const int first_row = Q_block * Traits::B_r;
      end = (first_row + Traits::B_r + Traits::B_c - 1) / Traits::B_c;
      unmasked_end = (first_row + 1) / Traits::B_c;
    }
  }
};

// Sets to -inf what lies right of the diagonal. `row` and `column`: of this lane's first element.
template <typename Traits>
FLASHSMITH_DEVICE void mask_causal(SAccumulators<Traits> &S, int row, int column) {
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
    for (int n = 0; n < Traits::S_n_tiles; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int element_row = row + m * kMmaM + i / 2 * 8;
        const int element_column = column + n * kMmaN + i % 2;
        if (element_column > element_row) S[m][n][i] = -INFINITY;
      }
    }
  }
}

}  // namespace flashsmith::sm80
