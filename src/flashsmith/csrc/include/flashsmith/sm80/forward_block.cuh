// The work of a thread block: its rows of Q, over the blocks of K and V that they see.
#pragma once

#include "flashsmith/attention/block_range.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/sm80/epilogue.cuh"
#include "flashsmith/sm80/gemm.cuh"
#include "flashsmith/sm80/may_see.cuh"
#include "flashsmith/sm80/smem_tile.cuh"

namespace flashsmith::sm80 {

// The kinds of visits to a block of K and V. Only the first one may extend beyond the sequence; the
// extra copies of the loop's body cost less than the registers for the bounds.
enum class Visit { first, masked, plain };

template <typename Traits>
class ForwardBlock {
  using value_t = typename Traits::value_t;
  static constexpr int B_r = Traits::B_r, B_c = Traits::B_c;
  // Whether warps leave out blocks that their rows do not see. Where an SM has several thread
  // blocks, the products of another one take the time of a warp that waits.
  static constexpr bool kLeavesOut =
      (Traits::Mask::kAhead || Traits::Mask::kBehind) && Traits::blocks_per_SM == 1 && B_r > B_c;
  using KVLoader = TileLoader<Traits, B_c>;

  const ForwardKernelArgs &args_;
  const WorkTile tile_;
  const typename Traits::Sequence sequence_;
  const ptx::shared_address shared_;
  const int row_, warp_row_;  // of the tile in the sequence, and of this warp in the tile
  const int lane_offset_, K_lane_offset_;
  const int end_, begin_;  // range of the blocks that the tile sees

  KVLoader K_loader_, V_loader_;
  const typename Traits::Dropout dropout_;
  QFragments<Traits> q_;
  OAccumulators<Traits> O_ = {};
  Softmax<Traits> softmax_[Traits::m_tiles];

 public:
  explicit FLASHSMITH_DEVICE ForwardBlock(const ForwardKernelArgs &args)
      : args_(args),
        tile_(tile_of_block<Traits>(args.problem)),
        sequence_(args.problem, tile_.batch),
        shared_(ptx::shared_memory()),
        row_(tile_.Q_block * B_r),
        warp_row_(ptx::thread_index() / kWarpSize * Traits::rows_per_warp),
        lane_offset_(SmemTile<Traits>::lane_offset(lane())),
        K_lane_offset_(SmemTile<Traits>::K_lane_offset(lane())),
        end_(ranged_end<Traits>(args.problem, head(), row_, row_ + B_r,
                                KV_blocks_end<Traits>(args.problem, sequence_, row_ + B_r))),
        begin_(ranged_begin<Traits>(args.problem, head(), row_, row_ + B_r,
                                    KV_blocks_begin<Traits>(args.problem, sequence_, row_, end_),
                                    end_)),
        K_loader_(loader(Traits::K_offset, args.K, args.K_strides, args.problem.d_qk)),
        V_loader_(loader(Traits::V_offset, args.V, args.V_strides, args.problem.d_v)),
        dropout_(args.problem, head()) {
#pragma unroll
    for (auto &softmax : softmax_) softmax.start(args.problem.softmax_scale_log2);
  }

  // Blocks of K and V are visited from the last to the first.
  FLASHSMITH_DEVICE void run() {
    if (Traits::Sequence::kVarlen && tile_.Q_block == kNoCluster) return;
    load_Q();
    if constexpr (Traits::config.eager_load_blocks) K_loader_.load_partial(n_keys(end_ - 1));
    keep_Q();
    int block = end_ - 1;
    const int masked = masked_from<Traits>(args_.problem, sequence_, row_);
    const int unmasked = unmasked_from<Traits>(args_.problem, sequence_, row_ + B_r);
    visit<Visit::first>(block, block >= masked || block < unmasked);
    block--;
    if constexpr (Traits::Mask::kAhead || Traits::Score::kMayHide) {
      for (; block >= masked && block >= begin_; block--) visit<Visit::masked>(block, true);
    }
    for (; block >= unmasked && block >= begin_; block--) visit<Visit::plain>(block, false);
    if constexpr (Traits::Mask::kBehind) {
      for (; block >= begin_; block--) visit<Visit::masked>(block, true);
    }
    store_tile<Traits>(args_, O_, softmax_);
  }

 private:
  static FLASHSMITH_DEVICE int lane() { return ptx::thread_index() % kWarpSize; }

  FLASHSMITH_DEVICE Head head() const { return {tile_.head, tile_.batch}; }

  FLASHSMITH_DEVICE ptx::shared_address Q_of_warp() const {
    return shared_ + Traits::Q_offset + warp_row_ * SmemTile<Traits>::kRowBytes;
  }

  // ---- loads ----

  // Returns a loader of K or V that starts at the last block.
  FLASHSMITH_DEVICE KVLoader loader(int offset, const void *tensor, const TensorStrides &strides,
                                    int row_elements) const {
    const int n_heads = args_.problem.n_heads, n_heads_kv = args_.problem.n_heads_kv;
    // These two divisions would delay the first load, and most problems need neither.
    const int head = n_heads == n_heads_kv ? tile_.head : tile_.head / (n_heads / n_heads_kv);
    const RowOffset place = sequence_.keys();
    const int64_t first_key = static_cast<int64_t>(end_ - 1) * B_c + place.row;
    return KVLoader(shared_ + offset,
                    static_cast<const value_t *>(tensor) + place.batch * strides.batch +
                        head * strides.head + first_key * strides.seq,
                    strides.seq, row_elements);
  }

  // Returns the number of keys from a block's first on.
  FLASHSMITH_DEVICE int n_keys(int block) const { return sequence_.seq_len_k() - block * B_c; }

  FLASHSMITH_DEVICE void load_Q() const {
    const TensorStrides &strides = args_.Q_strides;
    const RowOffset place = sequence_.queries();
    const auto *rows = static_cast<const value_t *>(args_.Q) + place.batch * strides.batch +
                       tile_.head * strides.head + (place.row + row_) * strides.seq;
    TileLoader<Traits, B_r>(shared_ + Traits::Q_offset, rows, strides.seq, args_.problem.d_qk)
        .load_partial(sequence_.seq_len_q() - row_);
  }

  FLASHSMITH_DEVICE void keep_Q() {
    if constexpr (!Traits::Q_in_registers) return;
    if constexpr (Traits::config.async_copy) ptx::cp_async_wait_group<0>();
    ptx::barrier_sync();
#pragma unroll
    for (int k = 0; k < Traits::QK_fragments; k++) {
      load_Q_fragment<Traits>(q_[k], Q_of_warp(), lane_offset_, k);
    }
  }

  template <Visit kVisit>
  static FLASHSMITH_DEVICE void load(const KVLoader &loader, int n_keys) {
    if constexpr (kVisit == Visit::first) {
      loader.load_partial(n_keys);
    } else {
      loader.load();
    }
  }

  // ---- steps ----

  // Visits one block of K and V. There are two barriers a block: at each, one tile has arrived for
  // all warps and the other has been read by all, so its next load may start. A warp whose rows see
  // none of the keys only copies and waits.
  template <Visit kVisit>
  FLASHSMITH_DEVICE void visit(int block, bool masked) {
    if constexpr (!Traits::config.eager_load_blocks) load<kVisit>(K_loader_, n_keys(block));
    if constexpr (Traits::config.async_copy) ptx::cp_async_wait_group<0>();
    ptx::barrier_sync();  // K has arrived, V is free
    if constexpr (Traits::config.eager_load_blocks) load<kVisit>(V_loader_, n_keys(block));
    K_loader_.step_back();

    SAccumulators<Traits> S;
    const bool is_seen = !kLeavesOut || kVisit == Visit::plain || sees(block);
    if (is_seen) compute_scores(S, block, masked);

    if constexpr (!Traits::config.eager_load_blocks) load<kVisit>(V_loader_, n_keys(block));
    V_loader_.step_back();
    if constexpr (Traits::config.async_copy) ptx::cp_async_wait_group<0>();
    ptx::barrier_sync();  // V has arrived, K is free
    if constexpr (Traits::config.eager_load_blocks) {
      if (block > begin_) K_loader_.load();
    }
    if (!is_seen) return;

    Softmax<Traits>::template step<kVisit != Visit::plain>(softmax_, S, O_);
    drop_weights(S, block);
    PFragments<Traits> P;
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) pack_operand<value_t>(P[m], S[m]);
    gemm_PV<Traits>(O_, P, shared_ + Traits::V_offset, lane_offset_, args_.problem.d_qk);
  }

  // Returns whether this warp's rows see keys of a block.
  FLASHSMITH_DEVICE bool sees(int block) const {
    const int row = row_ + warp_row_;
    return may_see<Traits>(args_.problem, sequence_, row, row + Traits::rows_per_warp, block * B_c,
                           block * B_c + B_c);
  }

  FLASHSMITH_DEVICE void compute_scores(SAccumulators<Traits> &S, int block, bool masked) {
    // d_qk is never zero.
    gemm_QK<Traits>(S, q_, Q_of_warp(), shared_ + Traits::K_offset, lane_offset_, K_lane_offset_,
                    args_.problem.d_qk);
    change_scores(S, block);
    if (masked) mask_scores(S, block);
  }

  // Returns this lane's first row of a fragment, in the sequence.
  FLASHSMITH_DEVICE int row_of(int m) const {
    return row_ + warp_row_ + m * kMmaM + first_row(lane());
  }

  FLASHSMITH_DEVICE void change_scores(SAccumulators<Traits> &S, int block) const {
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      flashsmith::change_scores<Traits>(S[m], args_.problem, sequence_, head(), row_of(m), block);
    }
  }

  FLASHSMITH_DEVICE void drop_weights(SAccumulators<Traits> &P, int block) const {
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      flashsmith::drop_weights<Traits>(P[m], args_.problem, dropout_, row_of(m),
                                       block * B_c + first_column(lane()));
    }
  }

  FLASHSMITH_DEVICE void mask_scores(SAccumulators<Traits> &S, int block) const {
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      mask<Traits>(S[m], args_.problem, sequence_, row_of(m), block);
    }
  }
};

}  // namespace flashsmith::sm80
