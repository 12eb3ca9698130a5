// A consumer warpgroup of decode: its 64 packed GQA rows, over the blocks of keys of split after
// split. S of a block is computed together with O += P V of the previous block, as in the forward
// (block_steps.cuh).
#pragma once

#include "flashsmith/attention/block_range.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/ptx/shuffle.cuh"
#include "flashsmith/ptx/uniform.cuh"
#include "flashsmith/sm90/block_steps.cuh"
#include "flashsmith/sm90/decode_output.cuh"
#include "flashsmith/sm90/decode_producer.cuh"

namespace flashsmith::sm90 {

// State that the loop over keys has no registers for, as words, of which each lane keeps one. Both
// structs depend on no template: nvcc 12.8 refuses to cast the bits of structs that do.
struct Parked {
  KeySplit split;
  SplitsState state;
};
struct ParkedWords {
  static constexpr int kCount = sizeof(Parked) / sizeof(int);
  int word[kCount];
};
static_assert(ParkedWords::kCount <= kWarpSize, "a lane has one word");

template <typename Traits>
class DecodeConsumer : BlockSteps<Traits, DecodeConsumer<Traits>> {
  using Steps = BlockSteps<Traits, DecodeConsumer<Traits>>;
  friend Steps;
  using Steps::lane, Steps::own_rows;

  // 16-byte chunks of a box's row of Q, and of a whole row.
  static constexpr int kBoxChunks = Traits::Q_tile.row_bytes / 16;
  static constexpr int kRowChunks = Traits::Q_tile.n_boxes * kBoxChunks;

  // One of a lane's two rows.
  struct LaneRow {
    int head, query;
    int last;  // the last key that it sees
  };

  const Sm90DecodeKernelArgs &args_;
  const int warpgroup_;
  const ptx::shared_address shared_;

  const ForwardScheduler<Traits> scheduler_;
  RingPosition<Traits::n_stages> K_stage_, V_stage_;

  QOperand<Traits> Q_;
  SAccumulator<Traits> S_;
  POperand<Traits> P_;
  OutputSums<Traits> O_;
  Softmax<Traits> softmax_;

  // The state of the split.
  int parked_ = 0;
  DecodeSequence sequence_;
  LaneRow lane_rows_[kHalves];
  int batch_ = 0;
  int block_ = 0;   // of S
  int masked_ = 0;  // the first block with a mask

 public:
  FLASHSMITH_DEVICE DecodeConsumer(const Sm90DecodeKernelArgs &args, int warpgroup)
      : args_(args),
        warpgroup_(warpgroup),
        shared_(ptx::shared_memory()),
        scheduler_(warpgroup),
        sequence_(args.problem, 0) {
    softmax_.start(args.problem.softmax_scale_log2);
  }

  FLASHSMITH_DEVICE void run() {
    scheduler_.begin();
    if constexpr (Traits::one_split) {
      visit_one_split();
    } else {
      visit_splits();
    }
  }

 private:
  static FLASHSMITH_DEVICE int thread() { return ptx::thread_index() % kWarpgroupSize; }
  // Returns whether this thread leads the consumer threads of the block.
  FLASHSMITH_DEVICE bool leads() const { return warpgroup_ == 0 && thread() == 0; }

  FLASHSMITH_DEVICE void visit_splits() {
    SplitsState state = KeySplits<Traits, Traits::equal_splits>(args_.problem).state();
    int continued = 0;  // the split of a work tile that an earlier block began, parked
    for (bool is_first = true; true; is_first = false) {
      KeySplits<Traits, Traits::equal_splits> splits(args_.problem, state);
      Parked own{};
      if (!ptx::uniform(splits.next(own.split))) break;
      own.state = splits.state();
      const Parked done = visit(own, is_first);
      state = done.state;
      const SoftmaxStats stats[kHalves] = {softmax_.stats(0), softmax_.stats(1)};
      const DecodeOutput<Traits> output(args_.problem, done.split, warpgroup_);
      if constexpr (Traits::waits) {
        if (done.split.count == 1) {
          output.store_rows(O_.sums(), stats);
        } else {
          output.store_partial(O_.sums(), stats);
          if (done.split.index > 0) continued = parked_;
        }
      } else {
        if (leads()) SplitTiles(args_.problem.split).add(done.split);
        output.write(O_.sums(), stats);
      }
    }
    scheduler_.end();
    if constexpr (Traits::waits) combine_shares(continued);
  }

  // Combines a share of each work tile that other blocks have a part of, too: of `continued`, and
  // of the last split if it begins a work tile. A block waits for others when it has arrived at
  // both.
  FLASHSMITH_DEVICE void combine_shares(int continued) const {
    constexpr int kTiles = Traits::arrived_words;
#pragma unroll 1
    for (int i = 0; i < 2 * kTiles; i++) {
      const int which = i % kTiles;
      const Parked done = parked(which == 0 ? continued : parked_);
      if (done.split.count <= 1 || (which > 0 && done.split.index > 0)) continue;
      const DecodeOutput<Traits> output(args_.problem, done.split, warpgroup_);
      if (i < kTiles) {
        output.arrive(which);
      } else {
        output.combine_share(which);
      }
    }
  }

  // Visits the block's equal split, and combines a share of its work tile.
  FLASHSMITH_DEVICE void visit_one_split() {
    KeySplits<Traits, Traits::equal_splits> splits(args_.problem);
    Parked own{};
    if (!ptx::uniform(splits.next(own.split))) {
      scheduler_.end();
      return;
    }
    const Parked done = visit(own, true);
    const SoftmaxStats stats[kHalves] = {softmax_.stats(0), softmax_.stats(1)};
    const DecodeOutput<Traits> output(args_.problem, done.split, warpgroup_);
    output.store_partial(O_.sums(), stats);
    scheduler_.end();
    output.arrive(0);
    output.combine_share(0);
  }

  // Visits a split, and returns it with the state; both are in no register meanwhile.
  FLASHSMITH_DEVICE Parked visit(const Parked &own, bool is_first) {
    park(own);
    open(own.split, is_first);
    clear();
    make_uniform();
    this->first_scores(S_);
    make_uniform();
    const int begin = ptx::uniform(own.split.begin), masked = ptx::uniform(masked_);
    for (block_--; block_ >= masked && block_ >= begin; block_--) {
      this->template overlapped_step<true>();
    }
    if constexpr (!Traits::Score::kMayHide) {
      for (; block_ >= begin; block_--) this->template overlapped_step<false>();
    }
    this->values();
    return parked(parked_);
  }

  // Tells the compiler that all lanes have the same blocks and stages, which it cannot see behind
  // the search for the split: products then take their descriptors from uniform registers.
  FLASHSMITH_DEVICE void make_uniform() {
    block_ = ptx::uniform(block_);
    K_stage_ = {ptx::uniform(K_stage_.buffer), ptx::uniform(K_stage_.parity)};
    V_stage_ = {ptx::uniform(V_stage_.buffer), ptx::uniform(V_stage_.parity)};
  }

  // Clears the accumulators. Products read them, even products that begin with zeros: after this no
  // sums of the previous split have to be kept, and combining gets their registers.
  FLASHSMITH_DEVICE void clear() {
    O_ = OutputSums<Traits>();
#pragma unroll
    for (int i = 0; i < Traits::B_c / 2; i++) S_[i] = 0.f;
  }

  FLASHSMITH_DEVICE void open(const KeySplit &split, bool is_first) {
    const DecodeRows<Traits> rows(args_.problem, split);
    batch_ = split.batch;
    const int row = warpgroup_ * kWgmmaM + thread() / kWarpSize * kWarpRows + first_row(lane());
    sequence_ = DecodeSequence(args_.problem, split.batch);
    block_ = split.end - 1;
    masked_ = masked_from<Traits>(args_.problem, sequence_, rows.query(warpgroup_ * kWgmmaM));
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const int own = row + half * kRowsPerHalf, query = rows.query(own);
      const int last =
          Traits::Mask::last(args_.problem, sequence_, query, sequence_.seq_len_k() - 1);
      lane_rows_[half] = {.head = rows.head(own), .query = query, .last = last};
    }
    load_Q(rows, is_first);
    Q_.load(own_rows());
  }

  // ---- state that the loop over keys has no registers for, a word for each lane ----

  FLASHSMITH_DEVICE void park(const Parked &own) {
    const auto words = __builtin_bit_cast(ParkedWords, own);
#pragma unroll
    for (int i = 0; i < ParkedWords::kCount; i++) {
      // recomputed() is opaque; otherwise nvcc would make this one load from an array in memory.
      const int word = ptx::recomputed(words.word[i]);
      parked_ = lane() == i ? word : parked_;
    }
  }
  static FLASHSMITH_DEVICE Parked parked(int own) {
    ParkedWords words;
#pragma unroll
    for (int i = 0; i < ParkedWords::kCount; i++) words.word[i] = ptx::shuffle_from(own, i);
    return __builtin_bit_cast(Parked, words);
  }

  // Loads Q into shared memory; missing rows are zeros.
  FLASHSMITH_DEVICE void load_Q(const DecodeRows<Traits> &rows, bool is_first) {
    constexpr int kChunks = kWgmmaM * kRowChunks / kWarpgroupSize;  // of a thread
    constexpr int kAtOnce = Traits::d_head <= 128 ? kChunks : 4;
    const int barrier = ptx::named_barrier_of(NamedBarrier::own_warps, warpgroup_);
#pragma unroll 1
    for (int first = 0; first < kChunks; first += kAtOnce) {
      ptx::Chunk chunks[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        chunks[i] = load_Q_chunk(rows, thread() + (first + i) * kWarpgroupSize);
      }
      if (first == 0) {
        if (is_first) LoadingOrder<Traits>::let_K_follow();
        // Products of other warps may still read Q of the previous split.
        ptx::named_barrier_sync(barrier, kWarpgroupSize);  // beyond what the emulator sees
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        store_Q_chunk(thread() + (first + i) * kWarpgroupSize, chunks[i]);
      }
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(barrier, kWarpgroupSize);
  }
  FLASHSMITH_DEVICE ptx::Chunk load_Q_chunk(const DecodeRows<Traits> &rows, int i) const {
    using value_t = typename Traits::value_t;
    constexpr int kElements = 16 / sizeof(value_t);
    const int tile_row = warpgroup_ * kWgmmaM + i / kRowChunks,
              element = i % kRowChunks * kElements;
    const auto *elements = static_cast<const value_t *>(args_.Q) +
                           rows.offset(args_.Q_strides, batch_, tile_row) + element;
    const bool has_element = !Traits::padded || element < args_.problem.d_qk;
    return ptx::load_global_16_or_zero(elements, tile_row < rows.count() && has_element);
  }
  FLASHSMITH_DEVICE void store_Q_chunk(int i, const ptx::Chunk &elements) {
    constexpr BoxedRows kTile = Traits::Q_tile;
    const int row = i / kRowChunks, chunk = i % kRowChunks;
    const int permutation = chunk_permutation<kTile.row_bytes>(row);
    ptx::store_shared_16(own_rows() + chunk / kBoxChunks * kTile.box_bytes + row * kTile.row_bytes +
                             (chunk % kBoxChunks ^ permutation) * 16,
                         elements);
  }

  // ---- scores ----

  FLASHSMITH_DEVICE void change_scores(SAccumulator<Traits> &S) {
    using Score = typename Traits::Score;
    if constexpr (!Score::kChanges) return;
    const int first_key = block_ * Traits::B_c + first_column(lane());
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const LaneRow &row = lane_rows_[half];
      const Score change(args_.problem, sequence_, {row.head, batch_}, row.query, first_key);
#pragma unroll
      for (int i = 0; i < Traits::B_c / 4; i++) {
        const int element = i / 2 * 4 + half * 2 + i % 2;
        S[element] = change(S[element], column_of(element));
      }
    }
  }

  FLASHSMITH_DEVICE void mask_scores(SAccumulator<Traits> &S) {
    const int first_key = block_ * Traits::B_c + first_column(lane());
#pragma unroll
    for (int i = 0; i < Traits::B_c / 2; i++) {
      if (column_of(i) > lane_rows_[half_of(i)].last - first_key) S[i] = -INFINITY;
    }
  }
  FLASHSMITH_DEVICE void mask_scores_if_cut(SAccumulator<Traits> &S) { mask_scores(S); }
};

}  // namespace flashsmith::sm90
