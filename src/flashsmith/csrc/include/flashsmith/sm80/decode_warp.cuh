// The work of one warp in a split: with its team, or alone if a team is one warp, it visits the
// team's keys, and waits for no other team.
#pragma once

#include "flashsmith/attention/decode_rows.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/sm80/decode_e4m3.cuh"
#include "flashsmith/sm80/decode_ring.cuh"
#include "flashsmith/sm80/gemm.cuh"
#include "flashsmith/sm80/named_barrier.cuh"

namespace flashsmith::sm80 {

// Slices of B_c keys are distributed to the teams of a block in turn.
template <typename Traits>
class DecodeWarp {
  using value_t = typename Traits::value_t;
  using Sequence = typename Traits::Sequence;
  using Mask = typename Traits::Mask;
  static constexpr int B_c = Traits::B_c, kStages = Traits::n_stages, kTeams = Traits::n_teams;

  const DecodeKernelArgs &args_;
  const KeySplit &split_;
  const Sequence sequence_;
  const DecodeRows<Traits> rows_;
  const ptx::shared_address ring_;
  QFragments<Traits> q_;
  float Q_factors_[kHalves] = {1.f, 1.f};  // factors of scores, by row
  OAccumulators<Traits> O_ = {};
  Softmax<Traits> softmax_[Traits::m_tiles];

 public:
  FLASHSMITH_DEVICE DecodeWarp(const DecodeKernelArgs &args, const KeySplit &split)
      : args_(args),
        split_(split),
        sequence_(args.problem, split.batch),
        rows_(args.problem, split),
        ring_(ptx::shared_memory() + team() * Traits::ring_bytes) {}

  // Accumulates the split, and leaves the partial result in the team's ring.
  FLASHSMITH_DEVICE void run() {
    const float scale_log2 = args_.problem.softmax_scale_log2;
    softmax_[0].start(Traits::Score::kChanges ? 1.f : scale_log2 * K_scale());
    const auto keys = KeySpan::template of<Traits>(args_.problem, sequence_);
    const int split_end = keys.begin + split_.end * kTeams * B_c;
    const int end = split_end < keys.end ? split_end : keys.end;
    int key = keys.begin + (split_.begin * kTeams + team()) * B_c, stage = 0;
    KVRing<Traits> ring(args_, sequence_, split_, keys.end, key);
#pragma unroll 1
    for (int i = 0; i < kStages - 1; i++) copy(ring, i, key + i * kTeams * B_c, end);
    if constexpr (Traits::Q_in_registers) {
      load_Q();
    } else {
      load_Q_tile();
      ptx::barrier_sync();
    }
    for (; key < end; key += kTeams * B_c) {
      ptx::cp_async_wait_group<kStages - 2>();
      meet();  // this stage has arrived, the previous one has been read
      copy(ring, stage == 0 ? kStages - 1 : stage - 1, key + (kStages - 1) * kTeams * B_c, end);
      if (has_rows()) visit(ring_ + stage * Traits::stage_bytes, key);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    ptx::let_next_launch_begin();
    meet();
    put_sums();
  }

 private:
  FLASHSMITH_DEVICE float K_scale() const {
    if constexpr (!Traits::fp8_cache || Traits::per_token_scale) return 1.f;
    return load_scale(args_.K_scale, split_.batch, split_.head);
  }

  static FLASHSMITH_DEVICE int lane() { return ptx::thread_index() % kWarpSize; }
  static FLASHSMITH_DEVICE int team() { return ptx::thread_index() / Traits::team_threads; }
  // The following functions return the first row of the work tile that this warp has, and a row of
  // the lane.
  static FLASHSMITH_DEVICE int warp_row() {
    return ptx::thread_index() / kWarpSize % Traits::row_warps * kRowsOfWarp;
  }
  static FLASHSMITH_DEVICE int lane_row(int half) {
    return warp_row() + first_row(lane()) + half * kRowsPerHalf;
  }

  FLASHSMITH_DEVICE bool has_rows() const {
    return Traits::row_warps == 1 || warp_row() < rows_.count();
  }

  // Orders the accesses of the team's warps to the ring.
  static FLASHSMITH_DEVICE void meet() {
    if constexpr (Traits::row_warps == 1) {
      ptx::warp_sync();
    } else {
      ptx::named_barrier_sync(ptx::named_barrier_of(NamedBarrier::team, team()),
                              Traits::team_threads);
    }
  }

  // If nothing is left to copy, an empty group is committed, so that the count of groups to wait
  // for stays the same.
  FLASHSMITH_DEVICE void copy(KVRing<Traits> &ring, int stage, int key, int end) const {
    if (key < end) {
      ring.copy(ring_ + stage * Traits::stage_bytes, key + kTeams * B_c);
    } else {
      ptx::cp_async_commit_group();
    }
  }

  // Loads Q's rows from global memory as an operand; missing rows are zeros.
  FLASHSMITH_DEVICE void load_Q() {
    const int n_rows = rows_.count(), d_qk = args_.problem.d_qk;
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const int row = lane_row(half);
      const auto *elements =
          static_cast<const value_t *>(args_.Q) + rows_.offset(args_.Q_strides, split_.batch, row);
#pragma unroll
      for (int i = 0; i < 2 * Traits::QK_fragments; i++) {
        const int column = Q_column<Traits::fp8_cache>(i, lane());
        const bool there = row < n_rows && (!Traits::padded || column < d_qk);
        q_[i / 2][0][i % 2 * 2 + half] =
            there ? ptx::thread_load_global(reinterpret_cast<const uint32_t *>(elements + column))
                  : 0;
      }
    }
    if constexpr (Traits::scales_Q) scale_to_half<Traits>(q_, Q_factors_);
  }

  // Stores this thread's part of Q's rows to a tile in shared memory.
  FLASHSMITH_DEVICE void load_Q_tile() const {
    constexpr int kRowChunks = SmemTile<Traits>::kRowChunks;
    const int n_rows = rows_.count(), d_qk = args_.problem.d_qk;
    for (int i = ptx::thread_index(); i < Traits::B_r * kRowChunks; i += Traits::n_threads) {
      const int row = i / kRowChunks, chunk = i % kRowChunks;
      const auto *elements =
          static_cast<const value_t *>(args_.Q) + rows_.offset(args_.Q_strides, split_.batch, row);
      const bool there = row < n_rows && (!Traits::padded || chunk * kChunkElements < d_qk);
      ptx::store_shared_16(Q_tile() + SmemTile<Traits>::offset(row, chunk),
                           load_Q_chunk(elements, chunk, there));
    }
  }
  static FLASHSMITH_DEVICE ptx::Chunk load_Q_chunk(const value_t *row, int chunk, bool there) {
    if constexpr (!Traits::fp8_cache) {
      return ptx::load_global_16_or_zero(row + chunk * kChunkElements, there);
    }
    ptx::Chunk words{};
#pragma unroll
    for (int w = 0; w < 4 && there; w++) {
      const auto *two = reinterpret_cast<const uint32_t *>(row + Q_column_of_chunk(chunk, w));
      words.word[w] = ptx::thread_load_global(two);
    }
    return words;
  }
  static FLASHSMITH_DEVICE ptx::shared_address Q_tile() {
    return ptx::shared_memory() + Traits::Q_offset;
  }
  static FLASHSMITH_DEVICE ptx::shared_address warp_Q_tile() {
    return Q_tile() + warp_row() * SmemTile<Traits>::kRowBytes;
  }

  FLASHSMITH_DEVICE void visit(ptx::shared_address stage, int key) {
    // d_qk is never zero.
    const int never_zero = args_.problem.d_qk;
    SAccumulators<Traits> S;
    if constexpr (Traits::fp8_cache) {
      gemm_QK_e4m3<Traits>(S, q_, warp_Q_tile(), stage, lane(), never_zero);
    } else {
      gemm_QK<Traits>(S, q_, warp_Q_tile(), stage, SmemTile<Traits>::lane_offset(lane()),
                      SmemTile<Traits>::K_lane_offset(lane()), never_zero);
    }
    if constexpr (Traits::scales_Q) {
#pragma unroll
      for (int i = 0; i < B_c / 2; i++) S[0][i] *= Q_factors_[half_of(i)];
    }
    if constexpr (Traits::per_token_scale) {
      ColumnScales<B_c>(stage + Traits::K_scales_offset, lane()).multiply(S[0]);
    }
    change_scores(S[0], key);
    if (!all_visible(key)) mask_scores(S[0], key);
    weigh(S, stage);
    PFragments<Traits> P;
    pack_operand<typename Traits::weight_t>(P[0], S[0]);
    if constexpr (Traits::fp8_cache) {
      gemm_PV_e4m3<Traits>(O_[0], P[0], stage + Traits::V_offset, lane());
    } else {
      add_values(P[0], stage + Traits::V_offset);
    }
  }

  // Replaces scores by the weights of values.
  FLASHSMITH_DEVICE void weigh(SAccumulators<Traits> &S, ptx::shared_address stage) {
    if constexpr (Traits::per_token_scale) {
      const ColumnScales<B_c> scales(stage + Traits::V_scales_offset, lane());
      const float scale_log2 = Traits::Score::kChanges ? 1.f : args_.problem.softmax_scale_log2;
      Softmax<Traits>::template step<true>(
          softmax_, S, O_, [&](int, int half) { return scales.largest(S[0], half, scale_log2); });
      scales.multiply(S[0]);
    } else {
      Softmax<Traits>::template step<true>(softmax_, S, O_);
    }
  }

  // Computes O += P V, a fragment of V at a time: if d_head is large there are no registers for
  // all.
  FLASHSMITH_DEVICE void add_values(const uint32_t (&P)[Traits::PV_fragments][4],
                                    ptx::shared_address V) {
    const int lane_offset = SmemTile<Traits>::lane_offset(lane());
#pragma unroll
    for (int k = 0; k < Traits::PV_fragments; k++) {
#pragma unroll
      for (int n = 0; n < Traits::O_n_tiles; n += 2) {
        uint32_t v[4];
        ptx::ldmatrix_x4<true>(v, V + SmemTile<Traits>::fragment_offset(lane_offset, k, n / 2));
        ptx::mma_m16n8k16<value_t>(n_tile(O_[0], n), P[k], v[0], v[1]);
        ptx::mma_m16n8k16<value_t>(n_tile(O_[0], n + 1), P[k], v[2], v[3]);
      }
    }
  }

  FLASHSMITH_DEVICE void change_scores(Fragment<B_c> &S, int key) const {
    using Score = typename Traits::Score;
    if constexpr (!Score::kChanges) return;
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const int row = lane_row(half);
      const Score change(args_.problem, sequence_, {rows_.head(row), split_.batch},
                         rows_.query(row), key + first_column(lane()));
#pragma unroll
      for (int i = 0; i < B_c / 4; i++) {
        const int element = i / 2 * 4 + half * 2 + i % 2;
        S[element] = change(S[element] * K_scale(), column_of(element));
      }
    }
  }

  // Returns whether every row of the tile sees all keys of the slice.
  FLASHSMITH_DEVICE bool all_visible(int key) const {
    const int last_key = sequence_.seq_len_k() - 1;
    const int first_query = rows_.query(0), last_query = rows_.query(rows_.count() - 1);
    return key + B_c - 1 <= Mask::last(args_.problem, sequence_, first_query, last_key) &&
           key >= Mask::first(args_.problem, sequence_, last_query);
  }

  FLASHSMITH_DEVICE void mask_scores(Fragment<B_c> &S, int key) const {
    const int lane_key = key + first_column(lane());
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const int query = rows_.query(lane_row(half));
      const int last_key = sequence_.seq_len_k() - 1;
      const int last = Mask::last(args_.problem, sequence_, query, last_key) - lane_key;
      const int first = Mask::first(args_.problem, sequence_, query) - lane_key;
#pragma unroll
      for (int i = 0; i < B_c / 4; i++) {
        const int element = i / 2 * 4 + half * 2 + i % 2;
        const bool seen = column_of(element) <= last && column_of(element) >= first;
        if (!seen) S[element] = -INFINITY;
      }
    }
  }

  FLASHSMITH_DEVICE void put_O() const {
#pragma unroll
    for (int i = 0; i < Traits::d_head / 2; i++) {
      const int row = lane_row(half_of(i));
      const int column = column_of(i) + first_column(lane());
      ptx::store_shared_4(ring_ + row * Traits::sum_row_bytes + column * sizeof(float),
                          ptx::float_bits(O_[0][i]));
    }
  }

  FLASHSMITH_DEVICE void put_O_e4m3() const {
#pragma unroll
    for (int i = 0; i < Traits::d_head / kMmaK; i++) {
#pragma unroll
      for (int half = 0; half < kHalves; half++) {
        const int row = lane_row(half);
        const int column = i * kMmaK + lane() % kLanesPerRow * 4;
        ptx::store_shared_16(ring_ + row * Traits::sum_row_bytes + column * sizeof(float),
                             columns_e4m3(O_[0], i, half));
      }
    }
  }

  FLASHSMITH_DEVICE void put_sums() const {
    if constexpr (Traits::fp8_cache) {
      put_O_e4m3();
    } else {
      put_O();
    }
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const SoftmaxStats row_stats = softmax_[0].stats(half);
      const int row = lane_row(half);
      if (lane() % kLanesPerRow != 0) continue;
      const ptx::shared_address place =
          ring_ + Traits::stats_offset + row * kStatsPerRow * sizeof(float);
      ptx::thread_store_shared_4(place, ptx::float_bits(row_stats.reference));
      ptx::thread_store_shared_4(place + sizeof(float), ptx::float_bits(row_stats.sum));
    }
  }
};

}  // namespace flashsmith::sm80
