// A block of the backward that keeps queries and visits keys: A1 and A2 are Q and dO, B1 and B2 are
// K and V.
#pragma once

#include "flashsmith/attention/block_range.cuh"
#include "flashsmith/sm80/backward_tensors.cuh"

namespace flashsmith::sm80 {

// The traits that a mask of kColumns columns needs.
template <typename Traits, int kColumns>
struct Columns {
  using Mask = typename Traits::Mask;
  using Sequence = typename Traits::Sequence;
  static constexpr int B_c = kColumns;
};

template <typename Traits, int kColumns>
class KeptQueries {
  static constexpr int B_r = Traits::B_r, B_c = Traits::B_c;
  using Scores = sm80::Scores<Traits, kColumns>;

  const BackwardTensors<Traits> tensors_;
  const int head_, head_kv_;
  const int row_;  // of the block's first row, in the sequence
  const VisitedRows visited_;
  float lse_[Traits::m_tiles][kHalves], delta_[Traits::m_tiles][kHalves];

 public:
  explicit FLASHSMITH_DEVICE KeptQueries(const BackwardKernelArgs &args)
      : tensors_(args, ptx::block_index_z()),
        head_(ptx::block_index_y()),
        head_kv_(head_ / tensors_.group_size()),
        row_(place_of_block() * B_r),
        visited_(visited()) {}

  FLASHSMITH_DEVICE bool is_there() const { return row_ < tensors_.sequence.seq_len_q(); }

  // ---- visits ----

  FLASHSMITH_DEVICE Visit first() const { return {visited_.begin, head_}; }
  FLASHSMITH_DEVICE bool is_over(const Visit &visit) const { return visit.row >= visited_.end; }
  FLASHSMITH_DEVICE Visit after(const Visit &visit) const { return {visit.row + B_c, visit.head}; }

  // ---- loads ----

  FLASHSMITH_DEVICE void load_kept(ptx::shared_address A1, ptx::shared_address A2) {
    tensors_.template load_Q<B_r>(A1, head_, row_);
    tensors_.template load_dO<B_r>(A2, head_, row_);
    load_statistics();
  }

  FLASHSMITH_DEVICE void load_visited(ptx::shared_address stage, const Visit &visit) const {
    tensors_.template load_K<B_c>(stage + Traits::B1_offset, head_kv_, visit.row);
    tensors_.template load_V<B_c>(stage + Traits::B2_offset, head_kv_, visit.row);
  }

  // ---- scores: `row` is the warp's first kept row in the block ----

  // Returns whether the mask leaves this warp any scores.
  FLASHSMITH_DEVICE bool has_scores(const Visit &visit, int row) const {
    return may_see<Traits>(tensors_.problem(), tensors_.sequence, row_ + row,
                           row_ + row + Traits::rows_per_warp, visit.row, visit.row + kColumns);
  }

  FLASHSMITH_DEVICE void change(Scores &S, Scores &factor, const Visit &visit, int row) const {
    const int lane = ptx::thread_index() % kWarpSize;
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      change_scores_and_factors<Traits, RowsAre::queries>(
          S[m], factor[m], tensors_.problem(), tensors_.sequence, tensors_.head(head_),
          row_ + row + m * kMmaM + first_row(lane), visit.row + first_column(lane));
    }
  }

  // Replaces scores by the exponents of the weights, in base 2.
  FLASHSMITH_DEVICE void become_exponents(Scores &S, ptx::shared_address, const Visit &) const {
    const float scale = tensors_.problem().softmax_scale_log2;
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i++) S[m][i] = fmaf(S[m][i], scale, -lse_[m][half_of(i)]);
    }
  }

  FLASHSMITH_DEVICE void mask(Scores &S, const Visit &visit, int row) const {
    if (!visited_.masked(visit.row, visit.row + kColumns)) return;
    const int first = row_ + row + first_row(ptx::thread_index() % kWarpSize);
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      flashsmith::mask<Columns<Traits, kColumns>>(S[m], tensors_.problem(), tensors_.sequence,
                                                  first + m * kMmaM, visit.row / kColumns);
    }
  }

  FLASHSMITH_DEVICE const ProblemArgs &problem() const { return tensors_.problem(); }

  FLASHSMITH_DEVICE typename Traits::Dropout dropout(const Visit &) const {
    return typename Traits::Dropout(problem(), tensors_.head(head_));
  }

  FLASHSMITH_DEVICE void mark_dropped(Scores &P, const typename Traits::Dropout &dropout,
                                      const Visit &visit, int row) const {
    const int lane = ptx::thread_index() % kWarpSize, first = row_ + row + first_row(lane);
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      flashsmith::mark_dropped<Traits, RowsAre::queries>(
          P[m], problem(), dropout, first + m * kMmaM, visit.row + first_column(lane));
    }
  }

  FLASHSMITH_DEVICE void subtract_delta(Scores &dP, ptx::shared_address, const Visit &) const {
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i++) dP[m][i] -= delta_[m][half_of(i)];
    }
  }

  // Stores the gradients of the changed scores, which are those of the bias.
  FLASHSMITH_DEVICE void store_dbias(const Scores &dS, const Visit &visit, int row) const {
    if constexpr (!Traits::has_bias) return;
    if (tensors_.gradient().dbias == nullptr) return;
    const int lane = ptx::thread_index() % kWarpSize;
    const int key = visit.row + first_column(lane);
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i++) {
        const int own = row_ + row + m * kMmaM + first_row(lane) + half_of(i) * kRowsPerHalf;
        store_dbias(dS[m][i], own, key + column_of(i));
      }
    }
  }

  // ---- gradients: A1 is the rows of this warp in this tile ----

  FLASHSMITH_DEVICE void store_first(const RowGradients<Traits> &dQ, ptx::shared_address A1,
                                     int row) const {
    tensors_.store_dQ(dQ, A1, head_, row_ + row);
  }

 private:
  // Returns the block of queries. Causal blocks near the end see the most keys: they start first.
  static FLASHSMITH_DEVICE int place_of_block() {
    const int x = ptx::block_index_x();
    return Traits::Mask::kAhead ? ptx::grid_size_x() - 1 - x : x;
  }

  FLASHSMITH_DEVICE VisitedRows visited() const {
    using Mask = typename Traits::Mask;
    const ProblemArgs &problem = tensors_.problem();
    const typename Traits::Sequence &sequence = tensors_.sequence;
    const int end = KV_blocks_end<Traits>(problem, sequence, row_ + B_r);
    return {KV_blocks_begin<Traits>(problem, sequence, row_, end) * B_c, end * B_c,
            Mask::first(problem, sequence, row_ + B_r - 1),
            Mask::last(problem, sequence, row_, sequence.seq_len_k() - 1) + 1};
  }

  // Loads the statistics of this lane's rows. Rows beyond the sequence get those of queries that
  // see no key.
  FLASHSMITH_DEVICE void load_statistics() {
    const int warp_row = ptx::thread_index() / kWarpSize * Traits::rows_per_warp;
    const int first = row_ + warp_row + first_row(ptx::thread_index() % kWarpSize);
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
      for (int half = 0; half < kHalves; half++) {
        const int row = first + m * kMmaM + half * kRowsPerHalf;
        lse_[m][half] = INFINITY;
        delta_[m][half] = 0.f;
        if (row >= tensors_.sequence.seq_len_q()) continue;
        const float *own =
            tensors_.statistics(head_, row) + statistics_place(row % kStatisticsRows);
        lse_[m][half] = load_statistic(own);
        delta_[m][half] = load_statistic(own + kStatisticsRows);
      }
    }
  }

  FLASHSMITH_DEVICE void store_dbias(float value, int row, int key) const {
    const ProblemArgs &problem = tensors_.problem();
    const typename Traits::Sequence &sequence = tensors_.sequence;
    if (row >= sequence.seq_len_q() || key >= sequence.seq_len_k()) return;
    const int64_t head = static_cast<int64_t>(ptx::block_index_z()) * problem.n_heads + head_;
    float *dbias = static_cast<float *>(tensors_.gradient().dbias) +
                   (head * problem.seq_len_q + row) * problem.seq_len_k + key;
    ptx::thread_store_global_4(dbias, ptx::float_bits(value));
  }
};

}  // namespace flashsmith::sm80
