// A consumer warpgroup of the backward: dK and dV of its 64 keys stay in registers while it walks
// over the blocks of queries, and it leaves its part of their dQ in shared memory.
//
// dQ needs dS of all warpgroups, and is computed a block late, so that no warpgroup waits for
// another's dS. The order is S dP | dV, dQ of the previous block, dK; `|` is a wait. Warpgroups may
// take turns, so that the softmax of one runs under the products of the other.
#pragma once

#include "flashsmith/sm90/backward_dQ.cuh"
#include "flashsmith/sm90/backward_score_factors.cuh"
#include "flashsmith/sm90/query_walk.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
class BackwardConsumer {
  using value_t = typename Traits::value_t;
  using Barriers = BackwardBarriers<Traits>;
  using Position = ConsumerPosition<Traits>;
  static constexpr PingPongScope kPingPongScope = static_cast<PingPongScope>(Traits::config.turns);
  static constexpr bool kFinishes = Traits::dQ_accumulation == DQAccumulation::ordered;
  // Groups of 16 queries have a chunk of statistics each.
  static constexpr int kGroups = Traits::B_r / kFragmentRows;

  const Sm90BackwardKernelArgs &args_;
  const KeyTile<Traits> &tile_;
  const int warpgroup_;
  const BackwardScheduler<Traits> scheduler_;
  Position &position_;

  KeyOperand<Traits, 0> K_;
  KeyOperand<Traits, Traits::V_register_steps> V_;
  KeyAccumulator<Traits> dK_, dV_;
  ScoreAccumulator<Traits> S_, dP_;                // later P and dS
  ScoreFactors<Traits, Traits::B_r / 2> factors_;  // of S
  dQAccumulator<Traits> dQ_;
  ScoreOperand<Traits> P_operand_, dS_operand_;

  QueryWalk<Traits> queries_;

 public:
  FLASHSMITH_DEVICE BackwardConsumer(const Sm90BackwardKernelArgs &args,
                                     const KeyTile<Traits> &tile, int warpgroup, Position &position)
      : args_(args),
        tile_(tile),
        warpgroup_(warpgroup),
        scheduler_(warpgroup),
        position_(position),
        K_(Traits::K_offset + warpgroup * kWgmmaM * Traits::row_bytes),
        V_(Traits::V_offset + warpgroup * kWgmmaM * Traits::row_bytes),
        queries_(args.problem, tile) {}

  // Computes dK and dV, without their factors.
  FLASHSMITH_DEVICE void run() {
#pragma unroll
    for (int i = 0; i < Traits::d_head / 2; i++) dK_[i] = dV_[i] = 0.f;
    if (tile_.n_steps == 0) return;
    ptx::mbarrier_wait_parity(Barriers::keys().full, position_.parity(Position::ring_of_keys));
    V_.load();
    if constexpr (kPingPongScope == PingPongScope::gradients_and_scores) scheduler_.wait();
    walk();
    if constexpr (kPingPongScope == PingPongScope::gradients_and_scores) scheduler_.pass();
    ptx::pin_registers(dK_);
    ptx::pin_registers(dV_);
  }

  FLASHSMITH_DEVICE const KeyAccumulator<Traits> &dK() const { return dK_; }
  FLASHSMITH_DEVICE const KeyAccumulator<Traits> &dV() const { return dV_; }

 private:
  // ---- blocks of queries ----

  // ptxas serialises products if a branch comes while accumulators are in flight that other
  // instructions than products read. So a block with each share of the previous block's dQ is a
  // separate text, which waits for all its products at its end.
  FLASHSMITH_DEVICE void walk() {
    const unsigned end = position_.step + tile_.n_steps;
    int until_dQ = Traits::shares_dQ ? 1 : warpgroup_ + 1;
#pragma unroll 1
    for (; position_.step != end; until_dQ--) {
      if (until_dQ != 0) {
        visit<dQShare::none>();
        continue;
      }
      if (finishes_dQ()) {
        visit<dQShare::rest>();
      } else {
        visit<dQShare::part>();
      }
      until_dQ = Traits::dQ_period;
    }
    if (until_dQ == 0) last_dQ();
    if constexpr (Traits::config.persistent) release(Barriers::keys().empty);
    position_.begin_round(Position::ring_of_keys);
  }

  template <dQShare kShare>
  FLASHSMITH_DEVICE void visit() {
    if constexpr (Traits::config.skip_unseen) {
      if (!is_seen()) return pass_by<kShare>();
    }
    issue_S();
    issue_dP();
    if constexpr (kPingPongScope == PingPongScope::gradients_and_scores) scheduler_.pass();
    ptx::Chunk first;  // of statistics, on its way while products are in flight
    load_statistics(first, 0, 0);
    ptx::wgmma_wait_group<1>();
    make_P(first);
    load_statistics(first, kStatisticsRows, 0);
    ptx::wgmma_wait_group<0>();
    make_dS(first);
    store_dS();
    if constexpr (kPingPongScope != PingPongScope::none) scheduler_.wait();
    issue_key_gradient<Traits>(dV_, P_operand_, dO_place());
    if constexpr (kShare != dQShare::none) issue_dQ_before();
    issue_key_gradient<Traits>(dK_, dS_operand_, Q_place());
    if constexpr (kPingPongScope == PingPongScope::gradients) scheduler_.pass();
    ptx::wgmma_wait_group<1>();
    release(Barriers::dO(position_.dO).empty);
    if constexpr (kShare != dQShare::none) free_dS_before();
    if constexpr (kShare == dQShare::part) dQ_output().store(dQ_);
    ptx::wgmma_wait_group<0>();
    release(Barriers::Q(position_.Q).empty);
    if constexpr (kShare == dQShare::rest) finish_dQ();
    advance();
  }

  // Returns whether a query of the block sees a key of the warpgroup.
  FLASHSMITH_DEVICE bool is_seen() const {
    const int key = first_key_of_warpgroup();
    const QueryRange range =
        queries_of_keys<Traits>(args_.problem, tile_.sequence, key, key + kWgmmaM);
    return queries_.row() + Traits::B_r > range.begin && queries_.row() < range.end;
  }

  // Visits a block without a query that sees this warpgroup's keys: dS is zero, and only the
  // previous block's dQ is computed.
  template <dQShare kShare>
  FLASHSMITH_DEVICE void pass_by() {
    wait_Q();
    wait_dO();
    if constexpr (kPingPongScope == PingPongScope::gradients_and_scores) scheduler_.pass();
#pragma unroll
    for (int step = 0; step < Traits::query_steps; step++) {
      for (uint32_t &word : dS_operand_[step]) word = 0;
    }
    store_dS();
    if constexpr (kPingPongScope != PingPongScope::none) scheduler_.wait();
    if constexpr (kShare != dQShare::none) issue_dQ_before();
    if constexpr (kPingPongScope == PingPongScope::gradients) scheduler_.pass();
    release(Barriers::dO(position_.dO).empty);
    release(Barriers::Q(position_.Q).empty);
    if constexpr (kShare != dQShare::none) {
      ptx::wgmma_wait_group<0>();
      free_dS_before();
    }
    if constexpr (kShare == dQShare::part) dQ_output().store(dQ_);
    if constexpr (kShare == dQShare::rest) finish_dQ();
    advance();
  }

  FLASHSMITH_DEVICE void advance() {
    position_.advance();
    queries_.advance(args_.problem, tile_);
  }

  FLASHSMITH_DEVICE void last_dQ() {
    issue_dQ_before();
    ptx::wgmma_wait_group<0>();
    free_dS_before();
    if (finishes_dQ()) {
      finish_dQ();
    } else {
      dQ_output().store(dQ_);
    }
  }

  // ---- products ----

  static FLASHSMITH_DEVICE int dS_buffer(unsigned step) { return step % kDSBuffers; }
  static FLASHSMITH_DEVICE int dS_parity(unsigned step) { return step / kDSBuffers % 2; }

  FLASHSMITH_DEVICE int Q_place() const {
    return Traits::Q_offset + position_.Q * Traits::query_tile_bytes;
  }
  FLASHSMITH_DEVICE int dO_place() const {
    return Traits::dO_offset + position_.dO * Traits::query_tile_bytes;
  }

  FLASHSMITH_DEVICE void wait_Q() const {
    ptx::mbarrier_wait_parity(Barriers::Q(position_.Q).full, position_.parity(Position::ring_of_Q));
  }
  FLASHSMITH_DEVICE void wait_dO() const {
    ptx::mbarrier_wait_parity(Barriers::dO(position_.dO).full,
                              position_.parity(Position::ring_of_dO));
  }

  FLASHSMITH_DEVICE void issue_S() {
    wait_Q();
    K_.issue_scores(S_, Q_place());
  }
  FLASHSMITH_DEVICE void issue_dP() {
    wait_dO();
    V_.issue_scores(dP_, dO_place());
  }

  FLASHSMITH_DEVICE void issue_dQ_before() {
    const int buffer = dS_buffer(position_.step - 1), parity = dS_parity(position_.step - 1);
    const int box = Traits::shares_dQ ? warpgroup_ * (Traits::dQ_columns / Traits::box_columns) : 0;
    ptx::mbarrier_wait_parity(Barriers::dS(buffer).full, parity);
    issue_dQ<Traits>(dQ_, Traits::dS_offset + buffer * Traits::dS_bytes,
                     Traits::K_offset + box * Traits::key_box_bytes);
  }

  // ---- scores ----

  // Loads the lane's statistics of 16 queries, which are columns 4 k, 4 k + 1, 4 k + 4 and 4 k + 5
  // of its elements.
  FLASHSMITH_DEVICE void load_statistics(ptx::Chunk &chunk, int first, int group) const {
    ptx::load_shared_16(chunk, ptx::shared_memory() + Traits::statistics_offset +
                                   position_.Q * kStatisticsBytes + first * 4 + group * 64 +
                                   warpgroup_lane() % kLanesPerRow * 16);
  }

  // `next` has the statistics of the first group of queries.
  FLASHSMITH_DEVICE void make_P(ptx::Chunk &next) {
    ptx::pin_registers(S_);
    change_and_mask();
#pragma unroll
    for (int group = 0; group < kGroups; group++) {
      const ptx::Chunk lse = next;
      if (group + 1 < kGroups) load_statistics(next, 0, group + 1);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float &score = S_[group * 8 + i];
        score = ptx::exp2_approx(fmaf(score, args_.problem.softmax_scale_log2,
                                      -ptx::bits_float(lse.word[i / 4 * 2 + i % 2])));
      }
    }
    mark_dropped<Traits, RowsAre::keys>(S_, args_.problem, queries_.dropout, first_key_of_lane(),
                                        queries_.row() + first_column(warpgroup_lane()));
    ptx::pin_registers(S_);
  }

  FLASHSMITH_DEVICE int first_key_of_warpgroup() const {
    return ptx::recomputed(tile_.key) + warpgroup_ * kWgmmaM;
  }
  FLASHSMITH_DEVICE int first_key_of_lane() const {
    return first_key_of_warpgroup() + warpgroup_warp() * kWarpRows + first_row(warpgroup_lane());
  }

  FLASHSMITH_DEVICE void change_and_mask() {
    const int first_key = first_key_of_warpgroup();
    const int key = first_key + warpgroup_warp() * kWarpRows + first_row(warpgroup_lane());
    const int query = queries_.row() + first_column(warpgroup_lane());
    if constexpr (Traits::Score::kChanges) change_scores(key, query);
    const QueryRange range =
        queries_of_keys<Traits>(args_.problem, tile_.sequence, first_key, first_key + kWgmmaM);
    const bool unmasked =
        queries_.row() >= range.unmasked_begin &&
        (!Traits::Mask::kBehind || queries_.row() + Traits::B_r <= range.unmasked_end);
    if (!unmasked) mask_keys<Traits>(S_, args_.problem, tile_.sequence, key, query);
  }

  FLASHSMITH_DEVICE void change_scores(int key, int query) {
    float factor[Traits::B_r / 2];
    change_scores_and_factors<Traits, RowsAre::keys>(
        S_, factor, args_.problem, tile_.sequence, {queries_.visit.head, tile_.batch}, key, query);
    factors_.keep(factor);
  }

  // Computes dS = P (dP - delta), with respect to the scaled score, in FP32 and as operands.
  FLASHSMITH_DEVICE void make_dS(ptx::Chunk &next) {
    ptx::pin_registers(dP_);
#pragma unroll
    for (int group = 0; group < kGroups; group++) {
      const ptx::Chunk delta = next;
      if (group + 1 < kGroups) load_statistics(next, kStatisticsRows, group + 1);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int element = group * 8 + i;
        dP_[element] = kept_gradient<Traits>(dP_[element], S_[element], args_.problem);
        dP_[element] -= ptx::bits_float(delta.word[i / 4 * 2 + i % 2]);
        dP_[element] *= weight_of<Traits>(S_[element]) * factors_.of(element);
      }
    }
    pack_operand<value_t>(dS_operand_, dP_);
    pack_kept<Traits>(P_operand_, S_);
#pragma unroll
    for (int step = 0; step < Traits::query_steps; step++) {
      ptx::pin_registers(dS_operand_[step]);
      ptx::pin_registers(P_operand_[step]);
    }
  }

  // ---- stores and arrivals ----

  FLASHSMITH_DEVICE void store_dS() {
    const int buffer = dS_buffer(position_.step);
    const BufferBarriers barriers = Barriers::dS(buffer);
    ptx::mbarrier_wait_parity(barriers.empty, dS_parity(position_.step) ^ 1);
    stage_dS<Traits>(ptx::shared_memory() + Traits::dS_offset + buffer * Traits::dS_bytes +
                         warpgroup_ * Traits::dS_box_bytes,
                     dS_operand_);
    publish(barriers.full);
  }

  FLASHSMITH_DEVICE void free_dS_before() const {
    release(Barriers::dS(dS_buffer(position_.step - 1)).empty);
  }

  // Returns whether this warpgroup finishes dQ of the previous block, which no later keys add to.
  FLASHSMITH_DEVICE bool finishes_dQ() const {
    return kFinishes && tile_.before(queries_.visit).block < tile_.first_shared(args_.problem);
  }

  FLASHSMITH_DEVICE void finish_dQ() {
    const QueryVisit before = tile_.before(queries_.visit);
    dQ_output().finish(dQ_, ptx::recomputed(before.head), ptx::recomputed(before.block));
  }
  FLASHSMITH_DEVICE dQOutput<Traits> dQ_output() const {
    return {args_, tile_, warpgroup_, position_};
  }
};

}  // namespace flashsmith::sm90
