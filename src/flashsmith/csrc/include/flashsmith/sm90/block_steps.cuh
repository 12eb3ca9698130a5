// The steps by which consumer warpgroups visit blocks of keys, in the forward and in decode.
#pragma once

#include "flashsmith/sm90/output_sums.cuh"
#include "flashsmith/sm90/pipeline.cuh"
#include "flashsmith/sm90/warpgroup_scheduler.cuh"

namespace flashsmith::sm90 {

// `Own` derives from this and has the state, whose registers are in the order of its members. It
// defines the changes of scores (change_scores, mask_scores and, for the first block it visits,
// mask_first_scores), and may hide the functions at the end of this class by its own.
template <typename Traits, typename Own>
class BlockSteps {
 protected:
  static FLASHSMITH_DEVICE int lane() { return ptx::thread_index() % kWarpSize; }

  FLASHSMITH_DEVICE ptx::shared_address own_rows() {
    return own().shared_ + Traits::Q_offset + own().warpgroup_ * kWgmmaM * Traits::Q_tile.row_bytes;
  }

  // ---- steps ----

  // Computes S of the first block, and P.
  FLASHSMITH_DEVICE void first_scores() {
    issue_scores();
    own().scheduler_.pass();
    finish_scores<0>();
    own().release_loaded_Q();
    start_softmax();
    start_values();
  }

  FLASHSMITH_DEVICE void start_softmax() {
    own().softmax_.reset();
    own().change_scores();
    own().mask_first_scores();
    own().softmax_.template step<true>(own().S_);
    own().drop();
  }
  FLASHSMITH_DEVICE void start_values() {
    pack_weights<Traits>(own().P_, own().S_);
    own().O_.start(own().softmax_);
  }

  // Computes S of this block together with O += P V of the previous one; then P.
  template <bool kMasked>
  FLASHSMITH_DEVICE void overlapped_step() {
    issue_both();
    own().scheduler_.pass_when_issued();
    finish_scores<1>();
    own().change_scores();
    if constexpr (kMasked) own().mask_scores();
    own().softmax_.template step<kMasked>(
        own().S_, [&](float known) { own().scheduler_.pass_when_known(known); });
    own().drop();
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

  FLASHSMITH_DEVICE void issue_values() {
    wait_V();
    own().O_.issue(own().P_,
                   own().shared_ + Traits::V_offset + own().V_stage_.buffer * Traits::V_bytes);
  }

  FLASHSMITH_DEVICE void issue_scores() {
    wait_K();
    own().scheduler_.wait();
    issue_QK<Traits>(own().S_, own().Q_,
                     own().shared_ + Traits::K_offset + own().K_stage_.buffer * Traits::K_bytes);
  }

  // Issues both products in one turn, which the caller passes.
  FLASHSMITH_DEVICE void issue_both() {
    issue_scores();
    issue_values();
  }

  // Waits for S, with kPending younger groups in flight; then K may be overwritten.
  template <int kPending>
  FLASHSMITH_DEVICE void finish_scores() {
    ptx::wgmma_wait_group<kPending>();
    ptx::pin_registers(own().S_);
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
  FLASHSMITH_DEVICE void drop() const {}

 private:
  FLASHSMITH_DEVICE Own &own() { return static_cast<Own &>(*this); }
};

}  // namespace flashsmith::sm90
