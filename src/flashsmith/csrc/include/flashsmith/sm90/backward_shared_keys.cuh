// A consumer warpgroup of the backward for rows whose dK and dV of 64 keys do not fit in its
// registers: the warpgroups share the keys of a block. Each computes the scores of its 32 keys,
// puts P and dS where all of them read them, and keeps its 64 columns of dK and dV of all keys.
//
// The order of the products is S dP | dV | dQ dK |, where `|` is a wait, and dK stays in flight:
// the exponentials run under dP, dS is made under dV, and dQ leaves under dK. So P has to be
// written by all warpgroups when dP is in flight, and dS when dV is.
//
// Few barriers are needed, because each warpgroup waits twice a block until all have written:
// - A warpgroup that overwrites dS has seen P of all; and each of these wrote P after its products
//   with the previous dS.
// - A warpgroup that overwrites P has seen the block's dO arrive; and that was loaded to the place
//   of the previous one, which was free after all products with it, and with P.
#pragma once

#include "flashsmith/sm90/backward_dQ.cuh"
#include "flashsmith/sm90/backward_score_factors.cuh"
#include "flashsmith/sm90/backward_shared_keys_gemm.cuh"
#include "flashsmith/sm90/query_walk.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
class SharedKeysConsumer {
  using value_t = typename Traits::value_t;
  using Barriers = BackwardBarriers<Traits>;
  using Position = ConsumerPosition<Traits>;
  static constexpr int kElements = Traits::score_keys / 2;  // of a thread's scores
  static constexpr bool kFinishes = Traits::dQ_accumulation == DQAccumulation::ordered;

  // The blocks of a warpgroup's keys, as the mask of a tile of queries knows them.
  struct ScoreBlocks {
    using Mask = typename Traits::Mask;
    using Sequence = typename Traits::Sequence;
    static constexpr int B_c = Traits::score_keys;
  };

  const Sm90BackwardKernelArgs &args_;
  const KeyTile<Traits> &tile_;
  const int warpgroup_;
  Position &position_;

  TransposedAccumulator<Traits> dK_, dV_;
  SharedKeyScores<Traits> S_, dP_;           // later P and dS
  ScoreFactors<Traits, kElements> factors_;  // of S
  dQAccumulator<Traits> dQ_;

  QueryWalk<Traits> queries_;

 public:
  FLASHSMITH_DEVICE SharedKeysConsumer(const Sm90BackwardKernelArgs &args,
                                       const KeyTile<Traits> &tile, int warpgroup,
                                       Position &position)
      : args_(args),
        tile_(tile),
        warpgroup_(warpgroup),
        position_(position),
        queries_(args.problem, tile) {}

  // Computes dK^T and dV^T, without their factors. P and dS are free when it returns.
  FLASHSMITH_DEVICE void run() {
#pragma unroll
    for (int i = 0; i < Traits::B_c / 2; i++) dK_[i] = dV_[i] = 0.f;
    if (tile_.n_steps == 0) return;
    ptx::mbarrier_wait_parity(Barriers::keys().full, position_.parity(Position::ring_of_keys));
    walk();
    ptx::pin_registers(dK_);
    ptx::pin_registers(dV_);
    release(Barriers::keys().empty);
    ptx::mbarrier_wait_parity(Barriers::keys().empty, position_.parity(Position::ring_of_keys));
    position_.begin_round(Position::ring_of_keys);
  }

  FLASHSMITH_DEVICE const TransposedAccumulator<Traits> &dK() const { return dK_; }
  FLASHSMITH_DEVICE const TransposedAccumulator<Traits> &dV() const { return dV_; }

 private:
  // ---- blocks of queries ----

  FLASHSMITH_DEVICE void walk() {
    const unsigned begin = position_.step, end = begin + tile_.n_steps;
#pragma unroll 1
    while (position_.step != end) {
      if (finishes_dQ()) {
        visit<dQShare::rest>(position_.step != begin);
      } else {
        visit<dQShare::part>(position_.step != begin);
      }
    }
    ptx::wgmma_wait_group<0>();
    release(Barriers::Q(Q_before()).empty);
  }

  // `has_before` says whether dK of the previous block is in flight.
  template <dQShare kShare>
  FLASHSMITH_DEVICE void visit(bool has_before) {
    ptx::mbarrier_wait_parity(Barriers::Q(position_.Q).full, position_.parity(Position::ring_of_Q));
    issue_scores<Traits>(S_, Q_place(), Traits::K_offset + own_keys());
    ptx::mbarrier_wait_parity(Barriers::dO(position_.dO).full,
                              position_.parity(Position::ring_of_dO));
    issue_scores<Traits>(dP_, dO_place(), Traits::V_offset + own_keys());
    ptx::wgmma_wait_group<1>();
    if (has_before) release(Barriers::Q(Q_before()).empty);
    make_P();
    ptx::mbarrier_wait_parity(Barriers::P_full(), parity());
    issue_transposed_gradient<Traits>(dV_, dO_place() + own_columns(), Traits::P_offset);
    ptx::wgmma_wait_group<1>();
    make_dS();
    ptx::mbarrier_wait_parity(Barriers::dS_full(), parity());
    issue_dQ<Traits>(dQ_, Traits::shared_dS_offset,
                     Traits::K_offset + warpgroup_ * Traits::key_box_bytes);
    issue_transposed_gradient<Traits>(dK_, Q_place() + own_columns(), Traits::shared_dS_offset);
    ptx::wgmma_wait_group<2>();
    release(Barriers::dO(position_.dO).empty);
    ptx::wgmma_wait_group<1>();
    if constexpr (kShare == dQShare::part) {
      dQ_output().store(dQ_);
    } else {
      dQ_output().finish(dQ_, ptx::recomputed(queries_.visit.head),
                         ptx::recomputed(queries_.visit.block));
    }
    advance();
  }

  FLASHSMITH_DEVICE void advance() {
    position_.advance();
    queries_.advance(args_.problem, tile_);
  }

  // Returns whether this block of keys is the last one that adds to dQ of the block.
  FLASHSMITH_DEVICE bool finishes_dQ() const {
    return kFinishes && queries_.visit.block < tile_.first_shared(args_.problem);
  }
  FLASHSMITH_DEVICE dQOutput<Traits> dQ_output() const {
    return {args_, tile_, warpgroup_, position_};
  }

  // ---- places ----

  FLASHSMITH_DEVICE int parity() const { return position_.step % 2; }  // of P and dS
  FLASHSMITH_DEVICE int Q_place() const {
    return Traits::Q_offset + position_.Q * Traits::query_tile_bytes;
  }
  FLASHSMITH_DEVICE int dO_place() const {
    return Traits::dO_offset + position_.dO * Traits::query_tile_bytes;
  }
  // Returns the stage of the previous block of Q.
  FLASHSMITH_DEVICE int Q_before() const {
    return (position_.Q == 0 ? Traits::Q_stages : position_.Q) - 1;
  }
  // The following functions return offsets of the warpgroup's keys in a tile of keys, and of its
  // columns in a tile of queries.
  FLASHSMITH_DEVICE int own_keys() const {
    return warpgroup_ * Traits::score_keys * Traits::row_bytes;
  }
  FLASHSMITH_DEVICE int own_columns() const { return warpgroup_ * Traits::query_box_bytes; }

  // ---- scores ----

  FLASHSMITH_DEVICE int first_key() const {
    return ptx::recomputed(tile_.key) + warpgroup_ * Traits::score_keys;
  }
  FLASHSMITH_DEVICE int row_of_lane() const {
    return queries_.row() + warpgroup_warp() * kWarpRows + first_row(warpgroup_lane());
  }

  // Loads the statistics of the lane's two rows, from `first` on.
  FLASHSMITH_DEVICE void load_statistics(float (&of_rows)[kHalves], int first) const {
    const int row = warpgroup_warp() * kWarpRows + first_row(warpgroup_lane());
    const ptx::shared_address own = ptx::shared_memory() + Traits::statistics_offset +
                                    position_.Q * kStatisticsBytes +
                                    (first + statistics_place(row)) * 4;
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const int distance = statistics_place(half * kRowsPerHalf) * 4;
      of_rows[half] = ptx::bits_float(ptx::load_shared_4(own + distance));
    }
  }

  FLASHSMITH_DEVICE void make_P() {
    ptx::pin_registers(S_);
    change_and_mask();
    float lse[kHalves];
    load_statistics(lse, 0);
#pragma unroll
    for (int i = 0; i < kElements; i++) {
      S_[i] = ptx::exp2_approx(fmaf(S_[i], args_.problem.softmax_scale_log2, -lse[half_of(i)]));
    }
    mark_dropped<Traits, RowsAre::queries>(S_, args_.problem, queries_.dropout, row_of_lane(),
                                           first_key() + first_column(warpgroup_lane()));
    ptx::pin_registers(S_);
    SharedKeyOperand<Traits> operand;
    pack_kept<Traits>(operand, S_);
    store(Traits::P_offset, operand, Barriers::P_full());
  }

  FLASHSMITH_DEVICE void change_and_mask() {
    const int key = first_key();
    if constexpr (Traits::Score::kChanges) change_scores(key + first_column(warpgroup_lane()));
    const QueryRange range =
        queries_of_keys<Traits>(args_.problem, tile_.sequence, key, key + Traits::score_keys);
    const bool unmasked =
        queries_.row() >= range.unmasked_begin &&
        (!Traits::Mask::kBehind || queries_.row() + Traits::B_r <= range.unmasked_end);
    if (!unmasked) {
      mask<ScoreBlocks>(S_, args_.problem, tile_.sequence, row_of_lane(), key / Traits::score_keys);
    }
  }

  FLASHSMITH_DEVICE void change_scores(int column) {
    float factor[kElements];
    change_scores_and_factors<Traits, RowsAre::queries>(S_, factor, args_.problem, tile_.sequence,
                                                        {queries_.visit.head, tile_.batch},
                                                        row_of_lane(), column);
    factors_.keep(factor);
  }

  // Computes dS = P (dP - delta), with respect to the scaled score.
  FLASHSMITH_DEVICE void make_dS() {
    ptx::pin_registers(dP_);
    float delta[kHalves];
    load_statistics(delta, kStatisticsRows);
#pragma unroll
    for (int i = 0; i < kElements; i++) {
      dP_[i] = kept_gradient<Traits>(dP_[i], S_[i], args_.problem) - delta[half_of(i)];
      dP_[i] *= weight_of<Traits>(S_[i]) * factors_.of(i);
    }
    SharedKeyOperand<Traits> operand;
    pack_operand<value_t>(operand, dP_);
    store(Traits::shared_dS_offset, operand, Barriers::dS_full());
  }

  // Stores scores as rows of queries in the box of the warpgroup's keys.
  FLASHSMITH_DEVICE void store(int boxes, const SharedKeyOperand<Traits> &scores,
                               ptx::shared_address barrier) const {
    const int lane = warpgroup_lane(), row = warpgroup_warp() * kWarpRows + lane % 16;
    const int permutation = chunk_permutation<Traits::dS_row_bytes>(row);
    const ptx::shared_address own_row = ptx::shared_memory() + boxes +
                                        warpgroup_ * Traits::dS_box_bytes +
                                        row * Traits::dS_row_bytes;
#pragma unroll
    for (int step = 0; step < Traits::score_keys / kWgmmaK; step++) {
      ptx::stmatrix_x4(own_row + ((2 * step + lane / 16) ^ permutation) * 16, scores[step]);
    }
    publish(barrier);
  }
};

}  // namespace flashsmith::sm90
