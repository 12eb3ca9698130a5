// A consumer warpgroup of the backward for rows whose dK and dV of 64 keys do not fit in its
// registers: the warpgroups share the keys of a block. Each computes the scores of its 32 keys,
// puts P and dS where all of them read them, and keeps its 64 columns of dK and dV of all keys.
//
// The order of the products is dP | dV | dQ dK | S of the next block |, where `|` is a wait: the
// exponentials run under dP, dS is made under dV, dQ goes to shared memory under dK, and is
// published there under S. ptxas would serialise the products if S were in flight at the loop's
// branch. So P has to be written by all warpgroups when dP is in flight, and dS when dV is.
//
// Few barriers are needed, because each warpgroup waits twice a block until all have written:
// - A warpgroup that overwrites dS has seen P of all; and each of these wrote P after its products
//   with the previous dS.
// - A warpgroup that overwrites P has seen the block's dO arrive; and that was loaded to the place
//   of the previous one, which was free after all products with it, and with P.
#pragma once

#include "flashsmith/ptx/named_barrier.cuh"
#include "flashsmith/sm90/backward_dQ.cuh"
#include "flashsmith/sm90/backward_score_factors.cuh"
#include "flashsmith/sm90/backward_shared_keys_gemm.cuh"
#include "flashsmith/sm90/query_walk.cuh"

namespace flashsmith::sm90 {

// The named barrier of the warpgroups, which take no turns (named_barrier.cuh).
enum class SharedKeysBarrier : int { scores_are_stored = 1 };

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
    const unsigned last = position_.step + tile_.n_steps - 1;
    issue_S();
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(S_);
#pragma unroll 1
    while (position_.step != last) visit<true>();
    visit<false>();
  }

  template <bool kHasNext>
  FLASHSMITH_DEVICE void visit() {
    if (finishes_dQ()) {
      visit<dQShare::rest, kHasNext>();
    } else {
      visit<dQShare::part, kHasNext>();
    }
  }

  FLASHSMITH_DEVICE void issue_S() {
    ptx::mbarrier_wait_parity(Barriers::Q(position_.Q).full, position_.parity(Position::ring_of_Q));
    issue_scores<Traits>(S_, Q_place(), Traits::K_offset + own_keys());
  }

  // Visits a block whose S is complete. That of the next block, if there is one, is issued when dQ
  // has left the registers, so that the tensor cores have work while dQ is published.
  template <dQShare kShare, bool kHasNext>
  FLASHSMITH_DEVICE void visit() {
    ptx::mbarrier_wait_parity(Barriers::dO(position_.dO).full,
                              position_.parity(Position::ring_of_dO));
    issue_scores<Traits>(dP_, dO_place(), Traits::V_offset + own_keys());
    float of_rows[kHalves];  // statistics, loaded while products are in flight
    load_statistics(of_rows, 0);
    make_P(of_rows);
    wait_for_all();
    issue_transposed_gradient<Traits>(dV_, dO_place() + own_columns(), Traits::P_offset);
    load_statistics(of_rows, kStatisticsRows);
    ptx::wgmma_wait_group<1>();
    make_dS(of_rows);
    wait_for_all();
    issue_dQ<Traits>(dQ_, Traits::shared_dS_offset,
                     Traits::K_offset + warpgroup_ * Traits::key_box_bytes);
    issue_transposed_gradient<Traits>(dK_, Q_place() + own_columns(), Traits::shared_dS_offset);
    ptx::wgmma_wait_group<2>();
    release(Barriers::dO(position_.dO).empty);
    ptx::wgmma_wait_group<1>();
    if constexpr (kShare == dQShare::part) {
      dQ_output().stage(dQ_);
    } else {
      dQ_output().finish(dQ_, ptx::recomputed(queries_.visit.head),
                         ptx::recomputed(queries_.visit.block));
    }
    advance();
    if constexpr (kHasNext) issue_S();
    if constexpr (kShare == dQShare::part) dQ_output().publish_staged();
    ptx::wgmma_wait_group<0>();
    if constexpr (kHasNext) ptx::pin_registers(S_);
    release(Barriers::Q(Q_before()).empty);
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

  FLASHSMITH_DEVICE void make_P(const float (&lse)[kHalves]) {
    ptx::pin_registers(S_);
    change_and_mask();
#pragma unroll
    for (int i = 0; i < kElements; i++) {
      S_[i] = ptx::exp2_approx(fmaf(S_[i], args_.problem.softmax_scale_log2, -lse[half_of(i)]));
    }
    mark_dropped<Traits, RowsAre::queries>(S_, args_.problem, queries_.dropout, row_of_lane(),
                                           first_key() + first_column(warpgroup_lane()));
    ptx::pin_registers(S_);
    SharedKeyOperand<Traits> operand;
    pack_kept<Traits>(operand, S_);
    store(Traits::P_offset, operand);
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
  FLASHSMITH_DEVICE void make_dS(const float (&delta)[kHalves]) {
    ptx::pin_registers(dP_);
#pragma unroll
    for (int i = 0; i < kElements; i++) {
      dP_[i] = kept_gradient<Traits>(dP_[i], S_[i], args_.problem) - delta[half_of(i)];
      dP_[i] *= weight_of<Traits>(S_[i]) * factors_.of(i);
    }
    SharedKeyOperand<Traits> operand;
    pack_operand<value_t>(operand, dP_);
    store(Traits::shared_dS_offset, operand);
  }

  // Stores scores as rows of queries in the box of the warpgroup's keys.
  FLASHSMITH_DEVICE void store(int boxes, const SharedKeyOperand<Traits> &scores) const {
    const int lane = warpgroup_lane(), row = warpgroup_warp() * kWarpRows + lane % 16;
    const int permutation = chunk_permutation<Traits::dS_row_bytes>(row);
    const ptx::shared_address own_row = ptx::shared_memory() + boxes +
                                        warpgroup_ * Traits::dS_box_bytes +
                                        row * Traits::dS_row_bytes;
#pragma unroll
    for (int step = 0; step < Traits::score_keys / kWgmmaK; step++) {
      ptx::stmatrix_x4(own_row + ((2 * step + lane / 16) ^ permutation) * 16, scores[step]);
    }
  }

  // Waits until all warpgroups have stored their scores, which products then read.
  static FLASHSMITH_DEVICE void wait_for_all() {
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(ptx::named_barrier_of(SharedKeysBarrier::scores_are_stored, 0),
                            Traits::n_warpgroups * kWarpgroupSize);
  }
};

}  // namespace flashsmith::sm90
