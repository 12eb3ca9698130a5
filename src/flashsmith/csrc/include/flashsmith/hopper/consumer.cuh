// A warpgroup that computes: its 64 rows of tile after tile.
//
// With overlap_softmax the products run one block apart: S of a block is computed together with
// O += P V of the block before it, and the softmax of a block runs under the latter. With
// overlap_tiles a tile's last P V runs with the next tile's first Q K^T in the same way. That
// boundary is a copy of the loop's body: as a case inside the loop it would cost every iteration.
#pragma once

#include "flashsmith/hopper/epilogue.cuh"
#include "flashsmith/hopper/mask.cuh"
#include "flashsmith/hopper/softmax.cuh"
#include "flashsmith/hopper/tile_schedule.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/named_barrier.cuh"

namespace flashsmith {

template <typename Kernel>
class Consumer {
  static constexpr int kFirstTurn = 1;  // named barrier of the first warpgroup's turn

  const HopperForwardKernelArgs &args_;
  const int warpgroup_;
  const ptx::shared_address shared_;

  TileConsumer<Kernel> tiles_;
  RingPosition<Kernel::n_stages> K_stage_, V_stage_;
  RingPosition<1> Q_buffer_;

  QOperand<Kernel> Q_;
  SAccumulator<Kernel> S_;
  POperand<Kernel> P_;
  OAccumulator<Kernel> O_;
  Softmax<Kernel> softmax_;

  int place_ = 0, row_ = 0;  // of the tile in the order; of this warp's first row in the sequence
  int block_ = 0, masked_from_ = 0;  // the block of S; blocks from here on have a mask
  int skipped_ = 0;                  // blocks before the tile's first that no row here sees
  bool O_started_ = false;

 public:
  FLASHSMITH_DEVICE Consumer(const HopperForwardKernelArgs &args, int warpgroup)
      : args_(args),
        warpgroup_(warpgroup),
        shared_(ptx::shared_memory()),
        tiles_(args),
        softmax_(args.softmax_scale_log2) {}

  FLASHSMITH_DEVICE void run() {
    if constexpr (Kernel::config.ping_pong) {
      if (warpgroup_ == 0) pass_turn(Kernel::n_warpgroups - 1);
    }
    int place = tiles_.next();
    if (place < n_tiles(args_)) {
      if constexpr (Kernel::config.overlap_tiles) {
        run_overlapped_tiles(place);
      } else {
        for (; place < n_tiles(args_); place = tiles_.next()) run_tile(place);
      }
    }
    if constexpr (Kernel::config.ping_pong) {
      if (warpgroup_ == 0) wait_turn();  // nobody else waits for the last turn
    }
    if constexpr (Kernel::config.tma_store) {
      if (lane() == 0) ptx::tma_store_wait_group<0>();
    }
  }

 private:
  static FLASHSMITH_DEVICE int lane() { return ptx::thread_index() % kWarpSize; }
  static FLASHSMITH_DEVICE int warp() { return ptx::thread_index() % kWarpgroupSize / kWarpSize; }

  // ---- tiles ----

  FLASHSMITH_DEVICE void run_tile(int place) {
    open(place);
    skip_V();
    load_Q();
    first_scores();
    if constexpr (Kernel::config.overlap_softmax) {
      for_each_block([&](auto masked) { overlapped_step<decltype(masked)::value>(); });
      values();
    } else {
      values();
      for_each_block([&](auto masked) { plain_step<decltype(masked)::value>(); });
    }
    store(place_, softmax_);
  }

  FLASHSMITH_DEVICE void run_overlapped_tiles(int place) {
    open(place);
    skip_V();
    load_Q();
    first_scores();
    while (true) {
      for_each_block([&](auto masked) { overlapped_step<decltype(masked)::value>(); });
      place = tiles_.next();
      if (place >= n_tiles(args_)) break;
      cross_into_tile(place);
    }
    values();
    store(place_, softmax_);
  }

  // The blocks after the first, those with a mask before the others.
  template <typename Step>
  FLASHSMITH_DEVICE void for_each_block(Step step) {
    for (block_--; block_ >= masked_from_ && block_ >= 0; block_--) step(std::true_type());
    for (; block_ >= 0; block_--) step(std::false_type());
  }

  FLASHSMITH_DEVICE void open(int place) {
    const Tile tile = tile_at<Kernel>(args_, place);
    const int row = tile.Q_block * Kernel::B_r + warpgroup_ * kWgmmaM;
    place_ = place;
    row_ = row + warp() * kWarpRows;
    const int blocks = n_KV_blocks<Kernel>(args_, tile_row_end<Kernel>(tile));
    skipped_ = n_skipped_blocks<Kernel>(args_, blocks, row);
    block_ = blocks - 1 - skipped_;
    masked_from_ = first_masked_block<Kernel>(args_, row);
    skip_K();
  }

  // Last before the first product, which uses it: the build refuses arrivals at a barrier, even at
  // another buffer's, while ldmatrix is under way.
  FLASHSMITH_DEVICE void load_Q() {
    ptx::mbarrier_wait_parity(Barriers<Kernel>::Q(warpgroup_).full, Q_buffer_.parity);
    Q_buffer_.advance();
    Q_.load(shared_ + Kernel::Q_offset + warpgroup_ * kWgmmaM * Kernel::row_bytes);
  }

  FLASHSMITH_DEVICE void store(int place, const Softmax<Kernel> &softmax) {
    const Tile tile = tile_at<Kernel>(args_, place);
    const int row = tile.Q_block * Kernel::B_r + warpgroup_ * kWgmmaM + warp() * kWarpRows;
    const ptx::shared_address staging =
        shared_ + Kernel::O_offset + (warpgroup_ * 4 + warp()) * Kernel::warp_staging_bytes;
    store_tile<Kernel>(args_, O_, softmax, {row, tile.head, tile.batch}, staging);
  }

  // ---- steps ----

  // S of a tile's first block, and P.
  FLASHSMITH_DEVICE void first_scores() {
    issue_scores();
    pass_turn(warpgroup_);
    finish_scores<0>();
    release_loaded_Q();
    start_softmax();
    convert_P<Kernel>(P_, S_);
    O_started_ = false;
  }

  FLASHSMITH_DEVICE void start_softmax() {
    softmax_.reset();
    if (block_ >= masked_from_) mask_scores();
    softmax_.template step<true>(S_);
  }

  // S of this block with O += P V of the one before; then P.
  template <bool kMasked>
  FLASHSMITH_DEVICE void overlapped_step() {
    issue_both();
    if constexpr (kMasked) mask_scores();
    softmax_.template step<kMasked>(S_);
    finish_values();
    // Before the branch in rescale: in one basic block with the exponentials, it fits in their
    // gaps.
    convert_P<Kernel>(P_, S_);
    softmax_.rescale(O_);
  }

  // The last O += P V of the tile that is done, together with S of the first block of the one at
  // `place`; then P.
  FLASHSMITH_DEVICE void cross_into_tile(int place) {
    const int done = place_;
    if constexpr (Kernel::Q_in_registers) {
      // Q has long been in shared memory. As in the loop the softmax runs under P V.
      open(place);
      load_Q();
      issue_both();
      release_loaded_Q();
      const Softmax<Kernel> softmax_of_done = softmax_;
      start_softmax();
      finish_values();
      skip_V();
      store(done, softmax_of_done);
    } else {
      // The wait for Q is covered by P V, and O leaves under Q K^T.
      issue_values();
      open(place);
      load_Q();
      issue_scores();
      pass_turn(warpgroup_);
      finish_values<1>();
      skip_V();
      store(done, softmax_);
      finish_scores<0>();
      start_softmax();
    }
    convert_P<Kernel>(P_, S_);
    O_started_ = false;
  }

  // One product after the other.
  template <bool kMasked>
  FLASHSMITH_DEVICE void plain_step() {
    issue_scores();
    pass_turn(warpgroup_);
    finish_scores<0>();
    if constexpr (kMasked) mask_scores();
    softmax_.template step<kMasked>(S_);
    convert_P<Kernel>(P_, S_);
    softmax_.rescale(O_);
    values();
  }

  FLASHSMITH_DEVICE void values() {
    issue_values();
    finish_values();
  }

  // ---- products ----

  FLASHSMITH_DEVICE void issue_values() {
    wait_V();
    issue_PV<Kernel>(O_, P_, V_block(), O_started_);
    O_started_ = true;
  }

  FLASHSMITH_DEVICE void issue_scores() {
    wait_K();
    wait_turn();
    issue_QK<Kernel>(S_, Q_, K_block());
  }

  // Both in one turn.
  FLASHSMITH_DEVICE void issue_both() {
    issue_scores();
    issue_values();
    pass_turn(warpgroup_);
    finish_scores<1>();
  }

  // S has arrived, with kPending younger groups in flight; K may be overwritten, and after the last
  // block Q.
  template <int kPending>
  FLASHSMITH_DEVICE void finish_scores() {
    ptx::wgmma_wait_group<kPending>();
    ptx::pin_registers(S_);
    release(Barriers<Kernel>::K(K_stage_.buffer));
    K_stage_.advance();
    if constexpr (!Kernel::Q_in_registers) {
      if (block_ == 0) release_Q();
    }
  }

  // O has arrived, with kPending younger groups in flight; V may be overwritten.
  template <int kPending = 0>
  FLASHSMITH_DEVICE void finish_values() {
    ptx::wgmma_wait_group<kPending>();
    ptx::pin_registers(O_);
    release(Barriers<Kernel>::V(V_stage_.buffer));
    V_stage_.advance();
  }

  // Blocks that other warpgroups work on pass by. A lane that still waits when the others let go of
  // the buffer could miss its phase: all lanes have to be there, as they are after a turn.
  FLASHSMITH_DEVICE void skip_K() {
    for (int i = 0; i < skipped_; i++) {
      wait_K();
      if constexpr (!Kernel::config.ping_pong) ptx::warp_sync();
      wait_turn();
      pass_turn(warpgroup_);
      release(Barriers<Kernel>::K(K_stage_.buffer));
      K_stage_.advance();
    }
  }
  FLASHSMITH_DEVICE void skip_V() {
    for (int i = 0; i < skipped_; i++) {
      wait_V();
      ptx::warp_sync();
      release(Barriers<Kernel>::V(V_stage_.buffer));
      V_stage_.advance();
    }
  }

  FLASHSMITH_DEVICE void mask_scores() { mask<Kernel>(S_, args_, row_ + lane() / 4, block_); }

  // ---- synchronisation ----

  FLASHSMITH_DEVICE ptx::shared_address K_block() const {
    return shared_ + Kernel::K_offset + K_stage_.buffer * Kernel::KV_bytes;
  }
  FLASHSMITH_DEVICE ptx::shared_address V_block() const {
    return shared_ + Kernel::V_offset + V_stage_.buffer * Kernel::KV_bytes;
  }
  FLASHSMITH_DEVICE void wait_K() const {
    ptx::mbarrier_wait_parity(Barriers<Kernel>::K(K_stage_.buffer).full, K_stage_.parity);
  }
  FLASHSMITH_DEVICE void wait_V() const {
    ptx::mbarrier_wait_parity(Barriers<Kernel>::V(V_stage_.buffer).full, V_stage_.parity);
  }
  // Where all of Q is in registers: after a tile's first product has used them. An arrival right
  // after ldmatrix would overtake its reads, and the copy of the next tile's Q overwrite them.
  FLASHSMITH_DEVICE void release_loaded_Q() const {
    if constexpr (Kernel::Q_in_registers) release_Q();
  }
  FLASHSMITH_DEVICE void release_Q() const {
    if constexpr (Kernel::config.persistent) {
      if (lane() == 0) ptx::mbarrier_arrive(Barriers<Kernel>::Q(warpgroup_).empty);
    }
  }
  // A buffer of K or V, to the producers of all blocks of the cluster.
  FLASHSMITH_DEVICE void release(const BufferBarriers &barriers) const {
    if constexpr (Kernel::cluster_size == 1) {
      if (lane() == 0) ptx::mbarrier_arrive(barriers.empty);
    } else if (lane() < Kernel::cluster_size) {
      ptx::mbarrier_arrive_remote(barriers.empty, lane());
    }
  }

  // Turns with the tensor cores go round the warpgroups.
  FLASHSMITH_DEVICE void wait_turn() const {
    if constexpr (Kernel::config.ping_pong) {
      ptx::named_barrier_sync(kFirstTurn + warpgroup_, 2 * kWarpgroupSize);
    }
  }
  FLASHSMITH_DEVICE void pass_turn(int from) const {
    if constexpr (Kernel::config.ping_pong) {
      ptx::named_barrier_arrive(kFirstTurn + (from + 1) % Kernel::n_warpgroups, 2 * kWarpgroupSize);
    }
  }
};

}  // namespace flashsmith
