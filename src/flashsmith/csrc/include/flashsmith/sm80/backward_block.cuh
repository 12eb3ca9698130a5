// The work of a thread block in the backward: its rows, over the tiles of the other side that see
// them or that they see.
#pragma once

#include <type_traits>

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm80/backward_gemm.cuh"
#include "flashsmith/sm80/backward_scores.cuh"
#include "flashsmith/sm80/kept_keys.cuh"
#include "flashsmith/sm80/kept_queries.cuh"

namespace flashsmith::sm80 {

// FlashAttention-2, section 3.1, algorithm 2, for one block of rows: S = A1 B1^T, dP = A2 B2^T,
// dS = P (dP - delta); the gradient of A1 is dS B1, and where rows are keys that of A2 is P B2.
template <typename Traits, GradientPass kGradients>
class BackwardBlock {
  static constexpr bool kFirst = kGradients != GradientPass::dV;  // computes the gradient of A1
  static constexpr bool kSecond = kGradients == GradientPass::dV ||
                                  kGradients == GradientPass::dK_dV;  // computes the gradient of A2
  static constexpr int kColumns = Traits::columns(kGradients);
  static constexpr bool kTwoStages = Traits::n_stages == 2;
  static constexpr int kFirstStage = Traits::stages_offset;
  using Rows = std::conditional_t<kGradients == GradientPass::dQ, KeptQueries<Traits, kColumns>,
                                  KeptKeys<Traits, kColumns, kFirst>>;
  using Scores = sm80::Scores<Traits, kColumns>;

  Rows rows_;
  const ptx::shared_address shared_;
  const int A1_, rows_offset_,
      columns_offset_;                // offsets of the lane's fragments: see backward_gemm.cuh
  typename Traits::Dropout dropout_;  // of the visited head
  RowGradients<Traits> first_ = {}, second_ = {};

 public:
  explicit FLASHSMITH_DEVICE BackwardBlock(const BackwardKernelArgs &args)
      : rows_(args),
        shared_(ptx::shared_memory()),
        A1_(Traits::A1_offset + warp_row() * SmemTile<Traits>::kRowBytes +
            SmemTile<Traits>::lane_offset(lane())),
        rows_offset_(SmemTile<Traits>::K_lane_offset(lane())),
        columns_offset_(SmemTile<Traits>::lane_offset(lane())) {}

  FLASHSMITH_DEVICE void run() {
    if (!rows_.is_there()) return;
    Visit visit = rows_.first();
    if (!rows_.is_over(visit)) {
      rows_.load_kept(shared_ + Traits::A1_offset, shared_ + Traits::A2_offset);
      rows_.load_visited(shared_ + kFirstStage, visit);
      dropout_ = rows_.dropout(visit);
    }
    for (int stage = kFirstStage; !rows_.is_over(visit); stage = after(stage)) {
      const Visit next = rows_.after(visit);
      ptx::cp_async_wait_group<0>();
      ptx::barrier_sync();  // this stage has arrived, the other has been read
      if (kTwoStages && !rows_.is_over(next)) rows_.load_visited(shared_ + after(stage), next);
      accumulate(visit, stage);
      if (!kTwoStages && !rows_.is_over(next)) {
        ptx::barrier_sync();
        rows_.load_visited(shared_ + stage, next);
      }
      if (next.head != visit.head) dropout_ = rows_.dropout(next);
      visit = next;
    }
    const int row = warp_row();
    const ptx::shared_address rows = shared_ + row * SmemTile<Traits>::kRowBytes;
    if constexpr (kFirst) rows_.store_first(first_, rows + Traits::A1_offset, row);
    if constexpr (kSecond) {
      rows_.store_second(second_, rows + (kFirst ? Traits::A2_offset : Traits::A1_offset), row);
    }
  }

 private:
  static FLASHSMITH_DEVICE int lane() { return ptx::thread_index() % kWarpSize; }

  // Returns the first row of this warp.
  static FLASHSMITH_DEVICE int warp_row() {
    return ptx::recomputed(ptx::thread_index()) / kWarpSize * Traits::rows_per_warp;
  }

  // Returns the stage of the next visit.
  static FLASHSMITH_DEVICE int after(int stage) {
    return kTwoStages ? 2 * kFirstStage + Traits::stage_bytes - stage : stage;
  }

  FLASHSMITH_DEVICE void accumulate(const Visit &visit, int stage) {
#pragma unroll 1
    for (int column = 0; column < Traits::B_c; column += kColumns) {
      accumulate({visit.row + column, visit.head}, stage,
                 stage + Traits::B1_offset + column * SmemTile<Traits>::kRowBytes);
    }
  }

  // Accumulates over kColumns visited rows, from B1 and the same rows of B2.
  FLASHSMITH_DEVICE void accumulate(const Visit &visit, int stage, int B1) {
    if constexpr (Traits::Mask::kAhead || Traits::Mask::kBehind) {
      if (!rows_.has_scores(visit, warp_row())) return;
    }
    constexpr int kOther = Traits::B2_offset - Traits::B1_offset;
    const ptx::shared_address statistics = shared_ + stage + Traits::statistics_offset;
    Scores P, dS, factor;
    gemm_with_rows<Traits, kColumns>(P, shared_, A1_, B1 + rows_offset_);
    rows_.change(P, factor, visit, warp_row());
    rows_.become_exponents(P, statistics, visit);
    rows_.mask(P, visit, warp_row());
    exponentiate<Traits>(P);
    rows_.mark_dropped(P, dropout_, visit, warp_row());
    if constexpr (kSecond) {
      PackedScores<Traits, kColumns> weights;
      pack_weights<Traits, kColumns>(weights, P);
      gemm_with_columns<Traits, kColumns>(second_, weights, shared_, B1 + kOther + columns_offset_);
    }
    if constexpr (kFirst) {
      gemm_with_rows<Traits, kColumns>(dS, shared_, A1_ + Traits::A2_offset - Traits::A1_offset,
                                       B1 + kOther + rows_offset_);
      keep_gradients(dS, P);
      rows_.subtract_delta(dS, statistics, visit);
      multiply_by_weights(dS, P);
      rows_.store_dbias(dS, visit, warp_row());
      if constexpr (Traits::Score::kHasFactor) multiply_seen<Traits>(dS, factor);
      gemm_with_columns<Traits, kColumns>(first_, dS, shared_, B1 + columns_offset_);
    }
  }

  FLASHSMITH_DEVICE void keep_gradients(Scores &dP, const Scores &P) const {
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i++) {
        dP[m][i] = kept_gradient<Traits>(dP[m][i], P[m][i], rows_.problem());
      }
    }
  }

  static FLASHSMITH_DEVICE void multiply_by_weights(Scores &S, const Scores &P) {
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; i++) S[m][i] *= weight_of<Traits>(P[m][i]);
    }
  }
};

}  // namespace flashsmith::sm80
