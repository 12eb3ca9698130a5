// dK and dV of the split backward. For the 64 keys of a block one warpgroup computes S^T, P and dV,
// the other dP^T, dS and dK, so that each keeps one accumulator in registers. P goes from one to
// the other through shared memory. The blocks of a cluster load Q and dO together.
//
// Both accumulate a block late, and so alternate without a scheduler: the exponentials of one run
// under the products of the other. The orders are dV of the previous block, S | exponentials; and
// dK of the previous block, dP | dS.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/sm90/split_backward_key_consumer.cuh"

namespace flashsmith::sm90 {

// Computes P and dV.
template <typename Traits>
class dVConsumer : public KeyConsumer<Traits> {
  using Base = KeyConsumer<Traits>;
  using Base::args_, Base::tile_, Base::sum_, Base::scores_, Base::operand_;
  using Base::Q_stage_, Base::dO_stage_, Base::P_buffer_, Base::lane;
  using typename Base::Barriers, typename Base::Memory, typename Base::value_t;

  KeyOperand<Traits, 0> K_{Memory::K};
  const QueryRange seen_;
  QueryWalk<Traits> queries_;

 public:
  FLASHSMITH_DEVICE dVConsumer(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile)
      : Base(args, tile),
        seen_(
            queries_of_keys<Traits>(args.problem, tile.sequence, tile.key, tile.key + Traits::B_c)),
        queries_(args.problem, tile) {}

  FLASHSMITH_DEVICE void run() {
    if (tile_.n_steps == 0) return;
    ptx::mbarrier_wait_parity(Barriers::keys(), 0);
    issue_S();
    make_P();
#pragma unroll 1
    for (int step = 1; step < tile_.n_steps; step++) {
      issue_dV();
      issue_S();
      finish_dV<1>();
      make_P();
    }
    issue_dV();
    finish_dV<0>();
    ptx::pin_registers(sum_);
  }

 private:
  FLASHSMITH_DEVICE void issue_S() {
    ptx::mbarrier_wait_parity(Barriers::Q(Q_stage_.buffer).full, Q_stage_.parity);
    K_.issue_scores(scores_, Base::place_of_Q(Q_stage_.buffer));
  }

  FLASHSMITH_DEVICE void issue_dV() {
    ptx::mbarrier_wait_parity(Barriers::dO(dO_stage_.buffer).full, dO_stage_.parity);
    issue_key_gradient<Traits>(sum_, operand_, Base::place_of_dO(dO_stage_.buffer));
  }

  template <int kPending>
  FLASHSMITH_DEVICE void finish_dV() {
    ptx::wgmma_wait_group<kPending>();
    release_to_cluster<Traits>(Barriers::dO(dO_stage_.buffer).empty);
    dO_stage_.advance();
  }

  FLASHSMITH_DEVICE void make_P() {
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(scores_);
    become_weights();
    pack_operand<value_t>(operand_, scores_);  // marked, for the warpgroup that computes dS
    store_P();
    if constexpr (Traits::Dropout::kDrops) pack_kept<Traits>(operand_, scores_);
    release_to_cluster<Traits>(Barriers::Q(Q_stage_.buffer).empty);
    advance();
  }

  FLASHSMITH_DEVICE void advance() {
    Q_stage_.advance();
    queries_.advance(args_.problem, tile_);
  }

  FLASHSMITH_DEVICE void become_weights() {
    const int warp = Base::thread() / kWarpSize;
    const int key = tile_.key + warp * kWarpRows + first_row(lane());
    const int query = queries_.row() + first_column(lane());
    if constexpr (Traits::Score::kChanges) {
      float factor[Traits::B_r / 2];
      change_scores_and_factors<Traits, RowsAre::keys>(
          scores_, factor, args_.problem, tile_.sequence, {queries_.visit.head, tile_.batch}, key,
          query);
    }
    become_exponents();
    if (queries_.row() < seen_.unmasked_begin ||
        (Traits::Mask::kBehind && queries_.row() + Traits::B_r > seen_.unmasked_end)) {
      mask_keys<Traits>(scores_, args_.problem, tile_.sequence, key, query);
    }
#pragma unroll
    for (int i = 0; i < Traits::B_r / 2; i++) scores_[i] = ptx::exp2_approx(scores_[i]);
    mark_dropped<Traits, RowsAre::keys>(scores_, args_.problem, queries_.dropout, key, query);
  }

  FLASHSMITH_DEVICE void become_exponents() {
#pragma unroll
    for (int group = 0; group < Base::kGroups; group++) {
      Base::load_statistics(0, group);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float &score = scores_[group * 8 + i];
        score = fmaf(score, args_.problem.softmax_scale_log2, -Base::statistic(i));
      }
    }
  }

  FLASHSMITH_DEVICE void store_P() {
    const BufferBarriers barriers = Barriers::P(P_buffer_.buffer);
    ptx::mbarrier_wait_parity(barriers.empty, P_buffer_.parity ^ 1);
#pragma unroll
    for (int i = 0; i < Traits::query_steps; i++) {
      ptx::Chunk chunk;
#pragma unroll
      for (int word = 0; word < 4; word++) chunk.word[word] = operand_[i][word];
      ptx::store_shared_16(Base::place_of_P(i), chunk);
    }
    // The statistics must have been read before a copy overwrites them.
    ptx::fence_proxy_async();
    ptx::warp_sync();
    release(barriers.full);
    P_buffer_.advance();
  }
};

// Computes dS and dK.
template <typename Traits>
class dKConsumer : public KeyConsumer<Traits> {
  using Base = KeyConsumer<Traits>;
  using Base::args_, Base::tile_, Base::sum_, Base::scores_, Base::operand_;
  using Base::Q_stage_, Base::dO_stage_, Base::P_buffer_;
  using typename Base::Barriers, typename Base::Memory, typename Base::value_t;

  KeyOperand<Traits, 0> V_{Memory::V};

 public:
  FLASHSMITH_DEVICE dKConsumer(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile)
      : Base(args, tile) {}

  FLASHSMITH_DEVICE void run() {
    if (tile_.n_steps == 0) return;
    ptx::mbarrier_wait_parity(Barriers::keys(), 0);
    issue_dP();
    make_dS();
#pragma unroll 1
    for (int step = 1; step < tile_.n_steps; step++) {
      issue_dK();
      issue_dP();
      finish_dK<1>();
      make_dS();
    }
    issue_dK();
    finish_dK<0>();
    ptx::pin_registers(sum_);
  }

 private:
  FLASHSMITH_DEVICE void issue_dP() {
    ptx::mbarrier_wait_parity(Barriers::dO(dO_stage_.buffer).full, dO_stage_.parity);
    V_.issue_scores(scores_, Base::place_of_dO(dO_stage_.buffer));
  }

  // Issues dK. The rows of Q have arrived, because P has been computed from them.
  FLASHSMITH_DEVICE void issue_dK() {
    issue_key_gradient<Traits>(sum_, operand_, Base::place_of_Q(Q_stage_.buffer));
  }

  template <int kPending>
  FLASHSMITH_DEVICE void finish_dK() {
    ptx::wgmma_wait_group<kPending>();
    release_to_cluster<Traits>(Barriers::Q(Q_stage_.buffer).empty);
    Q_stage_.advance();
  }

  // Computes dS = P (dP - delta), with respect to the scaled score, as an operand.
  FLASHSMITH_DEVICE void make_dS() {
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(scores_);
    release_to_cluster<Traits>(Barriers::dO(dO_stage_.buffer).empty);
    dO_stage_.advance();
    ptx::mbarrier_wait_parity(Barriers::Q(Q_stage_.buffer).full, Q_stage_.parity);
    if constexpr (!Traits::Dropout::kDrops) {
#pragma unroll
      for (int group = 0; group < Base::kGroups; group++) subtract_delta(group);
    }
    multiply_by_P();
    pack_operand<value_t>(operand_, scores_);
#pragma unroll
    for (int i = 0; i < Traits::query_steps; i++) ptx::pin_registers(operand_[i]);
  }

  FLASHSMITH_DEVICE void subtract_delta(int group) {
    Base::load_statistics(kStatisticsRows, group);
#pragma unroll
    for (int i = 0; i < 8; i++) scores_[group * 8 + i] -= Base::statistic(i);
  }

  FLASHSMITH_DEVICE void keep_gradients(const ptx::Chunk &P, int group) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const auto marked = static_cast<uint16_t>(P.word[i / 2] >> i % 2 * 16);
      float &dP = scores_[group * 8 + i];
      dP = kept_gradient<Traits>(dP, ptx::unpack<value_t>(marked), args_.problem);
    }
  }

  FLASHSMITH_DEVICE void multiply_by_P() {
    const BufferBarriers barriers = Barriers::P(P_buffer_.buffer);
    ptx::mbarrier_wait_parity(barriers.full, P_buffer_.parity);
#pragma unroll
    for (int group = 0; group < Base::kGroups; group++) {
      ptx::Chunk P;
      ptx::load_shared_16(P, Base::place_of_P(group));
      if constexpr (Traits::Dropout::kDrops) {
        keep_gradients(P, group);
        subtract_delta(group);
      }
#pragma unroll
      for (int word = 0; word < 4; word++) {
        const auto low = static_cast<uint16_t>(P.word[word]);
        const auto high = static_cast<uint16_t>(P.word[word] >> 16);
        scores_[group * 8 + 2 * word] *= weight_of<Traits>(ptx::unpack<value_t>(low));
        scores_[group * 8 + 2 * word + 1] *= weight_of<Traits>(ptx::unpack<value_t>(high));
      }
    }
    // P and the deltas must have been read before they are overwritten, the deltas by a copy.
    ptx::fence_proxy_async();
    ptx::warp_sync();
    release(barriers.empty);
    P_buffer_.advance();
  }
};

}  // namespace flashsmith::sm90
