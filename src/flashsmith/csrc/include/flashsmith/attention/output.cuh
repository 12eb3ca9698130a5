// The epilogue of 16 rows that every family shares: the factor of O, and the LSE.
#pragma once

#include "flashsmith/attention/dropout.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/attention/softmax.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith {

// A warp's 16 rows of a tile; `row` is the first row's index in the sequence.
struct WarpRows {
  int row, head, batch;
};

// One of a lane's rows: its index in the sequence, and its head.
struct LaneRow {
  int row, head;
};

// Adds a sink's exponential to the sum: a logit without a value, which may be the max.
template <typename Traits>
FLASHSMITH_DEVICE SoftmaxStats with_sink(const SoftmaxStats &row, const ProblemArgs &problem,
                                         int head) {
  if constexpr (!Traits::has_sinks) return row;
  const float sink = in_base_two(ptx::thread_load_global(problem.score.sinks + head));
  if (sink == -INFINITY) return row;
  const float reference = fmaxf(row.reference, sink);
  const float kept = row.sum == 0.f ? 0.f : ptx::exp2_approx(row.reference - reference);
  return {.reference = reference,
          .sum = row.sum * kept + ptx::exp2_approx(sink - reference),
          .kept = kept};
}

// Sets the factor of the lane's rows of O: 1 / l, or 0 for a row that has seen no key, times the
// scale of the kept weights under dropout. Stores the LSE if the caller wants it. row_of returns
// the LaneRow of a lane's half; rows beyond the sequence do not exist.
template <typename Traits, typename RowOf>
FLASHSMITH_DEVICE void finish_rows(float (&factor)[kHalves], const Softmax<Traits> &softmax,
                                   const ProblemArgs &problem, int batch, RowOf row_of) {
  const typename Traits::Sequence sequence(problem, batch);
  const int lane = ptx::thread_index() % kWarpSize;
#pragma unroll
  for (int half = 0; half < kHalves; half++) {
    const SoftmaxStats total =
        with_sink<Traits>(softmax.stats(half), problem, row_of(lane, half).head);
    factor[half] = total.sum == 0.f ? 0.f : total.kept / total.sum;
    if constexpr (Traits::Dropout::kDrops) factor[half] *= scale_of_kept<Traits>(problem);
    const LaneRow own = row_of(lane, half);
    if (problem.lse != nullptr && lane % kLanesPerRow == 0 && own.row < sequence.seq_len_q()) {
      const RowOffset place = sequence.queries();
      const int64_t head = static_cast<int64_t>(place.batch) * problem.n_heads + own.head;
      ptx::thread_store_global_4(problem.lse + head * sequence.rows_q() + place.row + own.row,
                                 ptx::float_bits(total.log_sum_exp()));
    }
  }
}

// Finishes rows that are queries side by side, of one head.
template <typename Traits>
FLASHSMITH_DEVICE void finish_rows(float (&factor)[kHalves], const Softmax<Traits> &softmax,
                                   const ProblemArgs &problem, const WarpRows &rows) {
  finish_rows(factor, softmax, problem, rows.batch, [&rows](int lane, int half) {
    return LaneRow{.row = rows.row + first_row(lane) + half * kRowsPerHalf, .head = rows.head};
  });
}

}  // namespace flashsmith
