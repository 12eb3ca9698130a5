// What every family does with 16 rows when their last block is done: the factor of O, and lse.
#pragma once

#include "flashsmith/attention/softmax.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith {

// A warp's 16 rows of a tile; `row` is the first one's place in the sequence.
struct WarpRows {
  int row, head, batch;
};

// Sets what the lane's rows of O are to be multiplied with, 1 / l, or 0 for a row that has seen
// nothing; and writes the log-sum-exp, if the caller wants it.
template <typename Traits>
FLASHSMITH_DEVICE void finish_rows(float (&factor)[kHalves], const Softmax<Traits> &softmax,
                                   const ProblemArgs &problem, const WarpRows &rows) {
  const typename Traits::Sequence sequence(problem, rows.batch);
  const int lane = ptx::thread_index() % kWarpSize;
#pragma unroll
  for (int half = 0; half < kHalves; half++) {
    const float sum = softmax.row_sum(half);
    factor[half] = sum == 0.f ? 0.f : 1.f / sum;
    const int row = rows.row + first_row(lane) + half * kRowsPerHalf;
    if (problem.lse != nullptr && lane % kLanesPerRow == 0 && row < sequence.seq_len_q()) {
      const int64_t head = static_cast<int64_t>(rows.batch) * problem.n_heads + rows.head;
      ptx::thread_store_global_4(problem.lse + head * problem.seq_len_q + row,
                                 ptx::float_bits(softmax.log_sum_exp(half, sum)));
    }
  }
}

}  // namespace flashsmith
