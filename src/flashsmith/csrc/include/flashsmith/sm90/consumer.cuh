// A consumer warpgroup of the forward: its 64 rows of tile after tile.
//
// With overlap_softmax the products run one block apart: S of a block is computed together with O
// += P V of the previous block, and the softmax of a block runs under the latter. With
// overlap_tiles a tile's last P V runs with the next tile's first Q K^T in the same way. That
// boundary is a copy of the loop's body: as a case inside the loop it would cost every iteration.
//
// With skip_unseen a tile's first block, the last of its keys, is computed in half where no row of
// the warpgroup sees the second half: on a diagonal, or at the end of the sequence. The step after
// it, which multiplies its P with V, is then a copy, too. Blocks at the far edge of the windows are
// left out like those at a tile's end, when the next tile begins.
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/softmax.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/sm90/block_steps.cuh"
#include "flashsmith/sm90/epilogue.cuh"
#include "flashsmith/sm90/skipped_blocks.cuh"
#include "flashsmith/sm90/tile_queue.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
class Consumer : BlockSteps<Traits, Consumer<Traits>> {
  using Steps = BlockSteps<Traits, Consumer<Traits>>;
  friend Steps;
  using Steps::first_scores, Steps::start_softmax, Steps::start_values, Steps::values;
  using Steps::issue_values, Steps::issue_scores, Steps::finish_values;
  using Steps::lane;

  // Whether tiles may skip blocks at the beginning.
  static constexpr bool kSomeAreBefore = Traits::Mask::kBehind || Traits::Score::kHasRanges;
  // Warpgroups leave out blocks at the far edge of windows.
  static constexpr bool kSkipsBefore = Traits::Mask::kBehind && Traits::config.skip_unseen;
  // A block in half has this number of keys, rounded up to whole steps of P V.
  static constexpr int kHalfBlock = (Traits::PV_steps + 1) / 2 * (Traits::B_c / Traits::PV_steps);

  const Sm90ForwardKernelArgs &args_;
  const int warpgroup_;
  const ptx::shared_address shared_;

  const ForwardScheduler<Traits> scheduler_;
  TileConsumer<Traits> tiles_;
  RingPosition<Traits::n_stages> K_stage_, V_stage_;
  RingPosition<1> Q_buffer_;

  QOperand<Traits> Q_;
  SAccumulator<Traits> S_;
  POperand<Traits> P_;
  OutputSums<Traits> O_;
  Softmax<Traits> softmax_;

  typename Traits::Sequence sequence_;       // of the tile
  Head head_{};                              // of the tile
  typename Traits::Dropout dropout_;         // of the tile
  int tile_index_ = 0;                       // of the tile in the order
  int row_ = 0;                              // this warp's first row in the sequence; if heads are
                                             // packed, this warpgroup's first query
  int block_ = 0;                            // of S
  int begin_ = 0;                            // the last block of the tile to be visited
  int masked_from_ = 0, unmasked_from_ = 0;  // see block_range.cuh
  int unread_ = 0;                           // blocks before the first that no row here sees
  int tail_ = 0;                             // blocks after the last that no row here sees
  bool half_ = false;                        // whether the first block is computed in half
  float score_scale_ = 1;  // of the tile: factor of scores before they are changed

 public:
  FLASHSMITH_DEVICE Consumer(const Sm90ForwardKernelArgs &args, int warpgroup)
      : args_(args),
        warpgroup_(warpgroup),
        shared_(ptx::shared_memory()),
        scheduler_(warpgroup),
        tiles_(args),
        sequence_(args.problem, 0) {
    softmax_.start(args.problem.softmax_scale_log2);
  }

  FLASHSMITH_DEVICE void run() {
    scheduler_.begin();
    int tile_index = tiles_.next();
    if (tile_index < n_tiles<Traits>(args_.problem)) {
      if constexpr (Traits::config.overlap_tiles) {
        run_overlapped_tiles(tile_index);
      } else {
        for (; tile_index < n_tiles<Traits>(args_.problem); tile_index = tiles_.next())
          run_tile(tile_index);
      }
    }
    if constexpr (kSkipsBefore) {
      unread_ = tail_;
      skip_K();
    }
    scheduler_.end();
    if constexpr (Traits::config.tma_store) {
      if (lane() == 0) ptx::tma_store_wait_group<0>();
    }
  }

 private:
  static FLASHSMITH_DEVICE int warp() { return ptx::thread_index() % kWarpgroupSize / kWarpSize; }

  FLASHSMITH_DEVICE int first_block() const { return kSomeAreBefore ? begin_ : 0; }

  // ---- tiles ----

  FLASHSMITH_DEVICE void run_tile(int tile_index) {
    open(tile_index);
    skip_V();
    load_Q();
    for_first_block([&](auto &S) { this->first_scores(S); });
    if constexpr (Traits::config.overlap_softmax) {
      overlapped_steps();
      values();
    } else {
      values();
      for_each_block([&](auto masked) { plain_step<masked>(); });
    }
    store(tile_index_, softmax_);
  }

  FLASHSMITH_DEVICE void run_overlapped_tiles(int tile_index) {
    open(tile_index);
    skip_V();
    load_Q();
    for_first_block([&](auto &S) { this->first_scores(S); });
    while (true) {
      overlapped_steps();
      tile_index = tiles_.next();
      if (tile_index >= n_tiles<Traits>(args_.problem)) break;
      cross_into_tile(tile_index);
    }
    values();
    store(tile_index_, softmax_);
  }

  // Calls `step` with registers for the scores of the tile's first block: of half of it, if the
  // rows see no more.
  template <typename Step>
  FLASHSMITH_DEVICE void for_first_block(Step step) {
    if constexpr (Traits::config.skip_unseen) {
      if (half_) {
        Fragment<kHalfBlock> half;
        return step(half);
      }
    }
    step(S_);
  }

  FLASHSMITH_DEVICE void overlapped_steps() {
    if constexpr (Traits::config.skip_unseen) {
      if (half_ && block_ > first_block()) {
        block_--;
        if (Traits::Score::kMayHide || block_ >= masked_from_ || block_ < unmasked_from_) {
          this->template overlapped_step<true, kHalfBlock>();
        } else {
          this->template overlapped_step<false, kHalfBlock>();
        }
      }
    }
    for_each_block([&](auto masked) { this->template overlapped_step<masked>(); });
  }

  // Calls `step` for the blocks after the first.
  template <typename Step>
  FLASHSMITH_DEVICE void for_each_block(Step step) {
    for (block_--; block_ >= masked_from_ && block_ >= first_block(); block_--) {
      step(std::true_type());
    }
    if constexpr (Traits::Score::kMayHide) return;
    if constexpr (!Traits::Mask::kBehind) {
      for (; block_ >= 0; block_--) step(std::false_type());
    } else {
      for (; block_ >= unmasked_from_ && block_ >= begin_; block_--) step(std::false_type());
      for (; block_ >= begin_; block_--) step(std::true_type());
    }
  }

  // Returns the warpgroup's first query of a tile.
  FLASHSMITH_DEVICE int first_query(const WorkTile &tile) const {
    return tile.Q_block * tile_queries<Traits>(args_) +
           warpgroup_ * warpgroup_queries<Traits>(args_);
  }

  FLASHSMITH_DEVICE void open(int tile_index) {
    const WorkTile tile = tile_at<Traits>(args_.problem, tile_index);
    const int row = first_query(tile), n_rows = warpgroup_queries<Traits>(args_);
    tile_index_ = tile_index;
    row_ = Traits::packed_heads ? row : row + warp() * kWarpRows;
    head_ = {tile.head, tile.batch};
    const ProblemArgs &problem = args_.problem;
    if constexpr (Traits::fp8_scores) open_scales();
    dropout_ = typename Traits::Dropout(problem, head_);
    sequence_ = typename Traits::Sequence(problem, tile.batch);
    const auto [begin, end] = KV_blocks_of_tile<Traits>(args_, sequence_, tile);
    begin_ = begin;
    unread_ = n_skipped_blocks<Traits>(problem, sequence_, begin_, end, row + n_rows,
                                       kMaxUnread<Traits> - (kSkipsBefore ? tail_ : 0));
    block_ = end - 1 - unread_;
    if constexpr (kSkipsBefore) {
      unread_ += tail_;
      tail_ = n_skipped_before<Traits>(problem, sequence_, begin_, block_, row);
      begin_ += tail_;
    }
    if constexpr (Traits::config.skip_unseen) {
      half_ =
          keys_end<Traits>(problem, sequence_, row + n_rows) <= block_ * Traits::B_c + kHalfBlock;
    }
    masked_from_ = masked_from<Traits>(problem, sequence_, row);
    unmasked_from_ = unmasked_from<Traits>(problem, sequence_, row + n_rows);
    skip_K();
  }

  // Loads Q just before the first product, which uses it: the build refuses arrivals at a barrier,
  // even at another buffer's, while ldmatrix is in flight.
  FLASHSMITH_DEVICE void load_Q() {
    ptx::mbarrier_wait_parity(Barriers<Traits>::Q(warpgroup_).full, Q_buffer_.parity);
    Q_buffer_.advance();
    Q_.load(this->own_rows());
  }

  FLASHSMITH_DEVICE void store(int tile_index, const Softmax<Traits> &softmax) {
    const WorkTile tile = tile_at<Traits>(args_.problem, tile_index);
    const int row = first_query(tile);
    const ptx::shared_address stagings = shared_ + Traits::O_offset;
    if constexpr (Traits::packed_heads) {
      store_tile<Traits>(args_, O_.sums(), softmax, {row, tile.head, tile.batch},
                         stagings + warpgroup_ * Traits::staging_bytes);
    } else {
      store_tile<Traits>(args_, O_.sums(), softmax,
                         {row + warp() * kWarpRows, tile.head, tile.batch},
                         stagings + (warpgroup_ * 4 + warp()) * Traits::staging_bytes);
    }
  }

  // ---- steps ----

  // Computes the last O += P V of the finished tile together with S of the first block of the tile
  // at `tile_index`; then P.
  FLASHSMITH_DEVICE void cross_into_tile(int tile_index) {
    const int done = tile_index_;
    if constexpr (Traits::Q_in_registers) {
      // Q has been in shared memory for long. As in the loop the softmax runs under P V.
      open(tile_index);
      load_Q();
      for_first_block([&](auto &S) {
        issue_scores(S);
        this->issue_values();
        scheduler_.pass();
        this->template finish_scores<1>(S);
        release_loaded_Q();
        const Softmax<Traits> softmax_of_done = softmax_;
        start_softmax(S);
        this->finish_values();
        skip_V();
        store(done, softmax_of_done);
        start_values(S);
      });
    } else {
      // P V covers the wait for Q, and O is stored under Q K^T.
      issue_values();
      open(tile_index);
      load_Q();
      for_first_block([&](auto &S) {
        issue_scores(S);
        scheduler_.pass();
        this->template finish_values<1>();
        skip_V();
        store(done, softmax_);
        this->template finish_scores<0>(S);
        start_softmax(S);
        start_values(S);
      });
    }
  }

  // Computes one product after the other.
  template <bool kMasked>
  FLASHSMITH_DEVICE void plain_step() {
    issue_scores(S_);
    scheduler_.pass();
    this->template finish_scores<0>(S_);
    change_scores(S_);
    if constexpr (kMasked) mask_scores(S_);
    softmax_.template step<kMasked>(S_);
    drop(S_);
    pack_weights<Traits>(P_, S_);
    O_.rescale(softmax_);
    values();
  }

  // Skips blocks, of this tile or the previous one, that only other warpgroups work on. A lane that
  // still waits when the others release the buffer could miss its phase, so all lanes have to meet,
  // as they do after a turn.
  FLASHSMITH_DEVICE void skip_K() {
    for (int i = 0; i < unread_; i++) {
      this->wait_K();
      if constexpr (!Traits::config.ping_pong) ptx::warp_sync();
      scheduler_.wait();
      scheduler_.pass();
      this->free_K();
    }
  }
  FLASHSMITH_DEVICE void skip_V() {
    for (int i = 0; i < unread_; i++) {
      this->wait_V();
      ptx::warp_sync();
      this->free_V();
    }
  }

  // Loads the FP8 scales of the tile's heads. They become part of the softmax's scale, unless
  // scores are changed first.
  FLASHSMITH_DEVICE void open_scales() {
    const int head = head_of_keys(args_.problem, head_.head);
    const float scale =
        load_scale(args_.Q_scale, head_.batch, head) * load_scale(args_.K_scale, head_.batch, head);
    if constexpr (Traits::Score::kChanges) {
      score_scale_ = scale;
    } else {
      softmax_.set_scale(args_.problem.softmax_scale_log2 * scale);
    }
  }

  template <int kElements>
  FLASHSMITH_DEVICE void change_scores(float (&S)[kElements]) {
    if constexpr (Traits::fp8_scores && Traits::Score::kChanges) {
#pragma unroll
      for (int i = 0; i < kElements; i++) S[i] *= score_scale_;
    }
    flashsmith::change_scores<Traits>(S, args_.problem, sequence_, head_, row_ + first_row(lane()),
                                      block_);
  }
  template <int kElements>
  FLASHSMITH_DEVICE void drop(float (&P)[kElements]) {
    drop_weights<Traits>(P, args_.problem, dropout_, row_ + first_row(lane()),
                         block_ * Traits::B_c + first_column(lane()));
  }
  template <int kElements>
  FLASHSMITH_DEVICE void mask_scores(float (&S)[kElements]) {
    if constexpr (Traits::packed_heads) {
      const PackedRows rows(args_.group, row_);
      const auto query_of = [&rows](int half) { return rows.query(half); };
      mask_rows<Traits>(S, args_.problem, sequence_, query_of, block_);
    } else {
      mask<Traits>(S, args_.problem, sequence_, row_ + first_row(lane()), block_);
    }
  }
  template <int kElements>
  FLASHSMITH_DEVICE void mask_scores_if_cut(float (&S)[kElements]) {
    if (block_ >= masked_from_ || block_ < unmasked_from_) mask_scores(S);
  }

  // ---- Q ----

  // Releases Q after a tile's first product has used its registers, if all of Q is in registers. An
  // arrival right after ldmatrix would overtake its reads, and the copy of the next tile's Q would
  // overwrite them.
  FLASHSMITH_DEVICE void release_loaded_Q() const {
    if constexpr (Traits::Q_in_registers) release_Q();
  }
  // Releases Q after the tile's last product, if some of Q is not in registers.
  FLASHSMITH_DEVICE void release_read_Q() const {
    if constexpr (!Traits::Q_in_registers) {
      if (block_ == first_block()) release_Q();
    }
  }
  FLASHSMITH_DEVICE void release_Q() const {
    if constexpr (Traits::config.persistent) {
      if (lane() == 0) ptx::mbarrier_arrive(Barriers<Traits>::Q(warpgroup_).empty);
    }
  }
};

}  // namespace flashsmith::sm90
