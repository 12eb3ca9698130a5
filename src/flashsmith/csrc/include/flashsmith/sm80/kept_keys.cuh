// A block of the backward that keeps keys and visits queries: A1 and A2 are K and V, B1 and B2 are
// Q and dO, for all heads that share the keys.
#pragma once

#include "flashsmith/attention/query_range.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/sm80/backward_tensors.cuh"

namespace flashsmith::sm80 {

template <typename Traits, int kColumns, bool kWithV>
class KeptKeys {
  static constexpr int kKept = Traits::kept_rows, kVisited = Traits::visited_rows;
  using Scores = sm80::Scores<Traits, kColumns>;

  const BackwardTensors<Traits> tensors_;
  const int head_kv_, first_head_, end_head_;  // head of K and V; range of heads of Q that share it
  const int row_;                              // of the block's first row, in the sequence
  const VisitedRows visited_;

 public:
  explicit FLASHSMITH_DEVICE KeptKeys(const BackwardKernelArgs &args)
      : tensors_(args, ptx::block_index_z()),
        head_kv_(ptx::block_index_y()),
        first_head_(head_kv_ * tensors_.group_size()),
        end_head_(first_head_ + tensors_.group_size()),
        row_(ptx::block_index_x() * kKept),
        visited_(visited()) {}

  FLASHSMITH_DEVICE bool is_there() const { return row_ < tensors_.sequence.seq_len_k(); }

  // ---- visits ----

  FLASHSMITH_DEVICE Visit first() const {
    const bool none = visited_.begin >= visited_.end;
    return {visited_.begin, none ? end_head_ : first_head_};
  }
  FLASHSMITH_DEVICE bool is_over(const Visit &visit) const { return visit.head == end_head_; }
  FLASHSMITH_DEVICE Visit after(const Visit &visit) const {
    const int row = visit.row + kVisited;
    if (row < visited_.end) return {row, visit.head};
    return {visited_.begin, visit.head + 1};
  }

  // ---- loads ----

  FLASHSMITH_DEVICE void load_kept(ptx::shared_address A1, ptx::shared_address A2) const {
    tensors_.template load_K<kKept>(A1, head_kv_, row_);
    if constexpr (kWithV) tensors_.template load_V<kKept>(A2, head_kv_, row_);
  }

  FLASHSMITH_DEVICE void load_visited(ptx::shared_address stage, const Visit &visit) const {
    load_statistics(stage + Traits::statistics_offset, visit);
    tensors_.template load_Q<kVisited>(stage + Traits::B1_offset, visit.head, visit.row);
    tensors_.template load_dO<kVisited>(stage + Traits::B2_offset, visit.head, visit.row);
  }

  // ---- scores: `row` is the warp's first kept row in the block ----

  // Returns whether the mask leaves this warp any scores with n_queries queries.
  FLASHSMITH_DEVICE bool has_scores(const Visit &visit, int row, int n_queries = kColumns) const {
    return may_see<Traits>(tensors_.problem(), tensors_.sequence, visit.row, visit.row + n_queries,
                           row_ + row, row_ + row + Traits::rows_per_warp);
  }

  FLASHSMITH_DEVICE void change(Scores &S, Scores &factor, const Visit &visit, int row) const {
    const int lane = ptx::thread_index() % kWarpSize;
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      change_scores_and_factors<Traits, RowsAre::keys>(
          S[m], factor[m], tensors_.problem(), tensors_.sequence, tensors_.head(visit.head),
          row_ + row + m * kMmaM + first_row(lane), visit.row + first_column(lane));
    }
  }

  // Replaces scores by the exponents of the weights, in base 2.
  FLASHSMITH_DEVICE void become_exponents(Scores &S, ptx::shared_address statistics,
                                          const Visit &visit) const {
    const float scale = tensors_.problem().softmax_scale_log2;
    with_statistics(S, statistics, visit.row, 0,
                    [scale](float score, float lse) { return fmaf(score, scale, -lse); });
  }

  FLASHSMITH_DEVICE void mask(Scores &S, const Visit &visit, int row) const {
    if (!visited_.masked(visit.row, visit.row + kColumns)) return;
    const int lane = ptx::thread_index() % kWarpSize, first = row_ + row + first_row(lane);
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      mask_keys<Traits>(S[m], tensors_.problem(), tensors_.sequence, first + m * kMmaM,
                        visit.row + first_column(lane));
    }
  }

  FLASHSMITH_DEVICE const ProblemArgs &problem() const { return tensors_.problem(); }

  FLASHSMITH_DEVICE typename Traits::Dropout dropout(const Visit &visit) const {
    return typename Traits::Dropout(problem(), tensors_.head(visit.head));
  }

  FLASHSMITH_DEVICE void mark_dropped(Scores &P, const typename Traits::Dropout &dropout,
                                      const Visit &visit, int row) const {
    const int lane = ptx::thread_index() % kWarpSize, first = row_ + row + first_row(lane);
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      flashsmith::mark_dropped<Traits, RowsAre::keys>(P[m], problem(), dropout, first + m * kMmaM,
                                                      visit.row + first_column(lane));
    }
  }

  FLASHSMITH_DEVICE void subtract_delta(Scores &dP, ptx::shared_address statistics,
                                        const Visit &visit) const {
    with_statistics(dP, statistics, visit.row, kStatisticsRows,
                    [](float gradient, float delta) { return gradient - delta; });
  }

  // sums_place returns the index of the dQ sums of the visited queries, and sums returns these
  // sums.
  FLASHSMITH_DEVICE int sums_place(const Visit &visit) const {
    return tensors_.sums_place(visit.head, visit.row);
  }
  FLASHSMITH_DEVICE float *sums(int place) const { return tensors_.sums(place); }

  // The kernel that keeps queries stores dbias.
  FLASHSMITH_DEVICE void store_dbias(const Scores &, const Visit &, int) const {}

  // ---- gradients: A1 and A2 are the rows of this warp in these tiles ----

  FLASHSMITH_DEVICE void store_first(const RowGradients<Traits> &dK, ptx::shared_address A1,
                                     int row) const {
    tensors_.store_dK(dK, A1, head_kv_, row_ + row);
  }
  FLASHSMITH_DEVICE void store_second(const RowGradients<Traits> &dV, ptx::shared_address A2,
                                      int row) const {
    tensors_.store_dV(dV, A2, head_kv_, row_ + row);
  }

 private:
  FLASHSMITH_DEVICE VisitedRows visited() const {
    const QueryRange queries =
        queries_of_keys<Traits>(tensors_.problem(), tensors_.sequence, row_, row_ + kKept);
    return {queries.begin / kVisited * kVisited, queries.end, queries.unmasked_begin,
            queries.unmasked_end};
  }

  // Loads the whole block of statistics that the visited rows lie in, a chunk for each lane.
  FLASHSMITH_DEVICE void load_statistics(ptx::shared_address statistics, const Visit &visit) const {
    static_assert(kStatisticsBytes == kWarpSize * kChunkBytes, "one warp copies them at once");
    if (ptx::thread_index() >= kWarpSize) return;
    const int lane = ptx::thread_index();
    const float *block = tensors_.statistics(visit.head, visit.row);
    ptx::cp_async_16(statistics + lane * kChunkBytes, block + lane * 4);
  }

  // Combines every element with its column's value in the block of statistics, among the values
  // that begin at `offset` floats (row_statistics.cuh has their order).
  template <typename Operation>
  FLASHSMITH_DEVICE void with_statistics(Scores &S, ptx::shared_address statistics, int row,
                                         int offset, Operation operation) const {
    const int first =
        row % kStatisticsRows + offset + ptx::recomputed(ptx::thread_index()) % kLanesPerRow * 4;
    const ptx::shared_address values = statistics + first * 4;
#pragma unroll
    for (int group = 0; group < kColumns / 16; group++) {
      ptx::Chunk chunk;
      ptx::load_shared_16(chunk, values + group * 16 * 4);
#pragma unroll
      for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
          float &element = S[m][group * 8 + i];
          element = operation(element, ptx::bits_float(chunk.word[i / 4 * 2 + i % 2]));
        }
      }
    }
  }
};

}  // namespace flashsmith::sm80
