// The steps by which consumer warpgroups visit blocks of keys, in the forward and in decode.
#pragma once

#include "flashsmith/sm90/output_sums.cuh"
#include "flashsmith/sm90/pipeline.cuh"
#include "flashsmith/sm90/warpgroup_scheduler.cuh"

namespace flashsmith::sm90 {

// `Own` derives from this and has the state, whose registers are in the order of its members. It
// defines the changes of scores (change_scores, mask_scores and, for the first block it visits,
// mask_scores_if_cut), and may hide the functions at the end of this class by its own.
template <typename Traits, typename Own>
class BlockSteps {
  template <int kKeys>
  static constexpr int PV_steps_of = Traits::PV_steps * kKeys / Traits::B_c;

 protected:
  static FLASHSMITH_DEVICE int lane() { return ptx::thread_index() % kWarpSize; }

  FLASHSMITH_DEVICE ptx::shared_address own_rows() {
    return own().shared_ + Traits::Q_offset + own().warpgroup_ * kWgmmaM * Traits::Q_tile.row_bytes;
  }

  // ---- steps ----

  // Computes S of the first block, and P. S has the first keys of the block or all: those that the
  // rows may see.
  template <int kElements>
  FLASHSMITH_DEVICE void first_scores(float (&S)[kElements]) {
    issue_scores(S);
    own().scheduler_.pass();
    finish_scores<0>(S);
    own().release_loaded_Q();
    start_softmax(S);
    start_values(S);
  }

  template <int kElements>
  FLASHSMITH_DEVICE void start_softmax(float (&S)[kElements]) {
    own().softmax_.reset();
    own().change_scores(S);
    own().mask_scores_if_cut(S);
    own().softmax_.template step<true>(S);
    own().drop(S);
  }
  template <int kElements>
  FLASHSMITH_DEVICE void start_values(const float (&S)[kElements]) {
    constexpr int kSteps = PV_steps_of<2 * kElements>;
    pack_weights<Traits>(first_elements<kSteps>(own().P_), S);
    // A tile without another block multiplies all of P.
#pragma unroll
    for (int step = kSteps; step < Traits::PV_steps; step++) {
      for (uint32_t &word : own().P_[step]) word = 0;
    }
    own().O_.start(own().softmax_);
  }

  // Computes S of this block together with O += P V of the previous one, of which P has kKeys keys;
  // then P.
  template <bool kMasked, int kKeys = Traits::B_c>
  FLASHSMITH_DEVICE void overlapped_step() {
    issue_scores(own().S_);
    issue_values<kKeys>();
    own().scheduler_.pass_when_issued();
    finish_scores<1>(own().S_);
    own().change_scores(own().S_);
    if constexpr (kMasked) own().mask_scores(own().S_);
    own().softmax_.template step<kMasked>(
        own().S_, [&](float known) { own().scheduler_.pass_when_known(known); });
    own().drop(own().S_);
    finish_values();
    // This comes before the branch in rescale: in one basic block with the exponentials, it fits in
    // their gaps.
    pack_weights<Traits>(own().P_, own().S_);
    own().O_.rescale(own().softmax_);
  }

  FLASHSMITH_DEVICE void values() {
    issue_values();
    finish_values();
  }

  // ---- products ----

  template <int kKeys = Traits::B_c>
  FLASHSMITH_DEVICE void issue_values() {
    wait_V();
    own().O_.issue(first_elements<PV_steps_of<kKeys>>(own().P_),
                   own().shared_ + Traits::V_offset + own().V_stage_.buffer * Traits::V_bytes);
  }

  // Issues S = Q K^T. The caller passes the turn, after other products that belong to it.
  template <int kElements>
  FLASHSMITH_DEVICE void issue_scores(float (&S)[kElements]) {
    wait_K();
    own().scheduler_.wait();
    issue_QK<Traits>(S, own().Q_,
                     own().shared_ + Traits::K_offset + own().K_stage_.buffer * Traits::K_bytes);
  }

  // Waits for S, with kPending younger groups in flight; then K may be overwritten.
  template <int kPending, int kElements>
  FLASHSMITH_DEVICE void finish_scores(float (&S)[kElements]) {
    ptx::wgmma_wait_group<kPending>();
    ptx::pin_registers(S);
    free_K();
    own().release_read_Q();
  }

  // Waits for O, with kPending younger groups in flight; then V may be overwritten.
  template <int kPending = 0>
  FLASHSMITH_DEVICE void finish_values() {
    ptx::wgmma_wait_group<kPending>();
    own().O_.pin();
    free_V();
    own().O_.add_block();
  }

  // ---- synchronisation ----

  FLASHSMITH_DEVICE void wait_K() {
    ptx::mbarrier_wait_parity(Barriers<Traits>::K(own().K_stage_.buffer).full,
                              own().K_stage_.parity);
  }
  FLASHSMITH_DEVICE void wait_V() {
    ptx::mbarrier_wait_parity(Barriers<Traits>::V(own().V_stage_.buffer).full,
                              own().V_stage_.parity);
  }
  FLASHSMITH_DEVICE void free_K() {
    release(Barriers<Traits>::K(own().K_stage_.buffer));
    own().K_stage_.advance();
  }
  FLASHSMITH_DEVICE void free_V() {
    release(Barriers<Traits>::V(own().V_stage_.buffer));
    own().V_stage_.advance();
  }

  // Releases a buffer of K or V to the producers of all blocks of the cluster.
  FLASHSMITH_DEVICE void release(const BufferBarriers &barriers) const {
    if constexpr (Traits::cluster_size == 1) {
      if (lane() == 0) ptx::mbarrier_arrive(barriers.empty);
    } else if (lane() < Traits::cluster_size) {
      ptx::mbarrier_arrive_remote(barriers.empty, lane());
    }
  }

  // ---- functions that `Own` may hide ----

  FLASHSMITH_DEVICE void release_loaded_Q() const {}  // after a first product
  FLASHSMITH_DEVICE void release_read_Q() const {}    // after every product
  template <int kElements>
  FLASHSMITH_DEVICE void drop(float (&)[kElements]) const {}

 private:
  FLASHSMITH_DEVICE Own &own() { return static_cast<Own &>(*this); }
};

}  // namespace flashsmith::sm90
