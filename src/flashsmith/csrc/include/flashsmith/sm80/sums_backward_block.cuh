// The work of a thread block in the sums backward: its keys, over the tiles of queries that see
// them.
#pragma once

#include "flashsmith/attention/dQ_sums.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm80/backward_scores.cuh"
#include "flashsmith/sm80/kept_keys.cuh"
#include "flashsmith/sm80/sums_backward_gemm.cuh"

namespace flashsmith::sm80 {

// FlashAttention-2, section 3.1, algorithm 2: S^T = K Q^T, dP^T = V dO^T, dS = P (dP - delta); dV
// and dK, P^T dO and dS^T Q, stay in registers, and dQ = dS K is added to the sums in global
// memory. dQ is computed a tile late, so that warps that have finished a tile's dS need not wait
// for the others.
template <typename Traits>
class SumsBackwardBlock {
  static constexpr int kColumns = Traits::columns, kQueries = Traits::queries_per_warp;
  static constexpr int kNone = -1;
  static constexpr bool kTwoStages = Traits::n_stages == 2;
  static constexpr bool kMasked = Traits::Mask::kAhead || Traits::Mask::kBehind;
  using Tile = SmemTile<Traits>;
  using ScoreTile = SmemTile<typename Traits::ScoreTile>;
  using Scores = sm80::Scores<Traits, kColumns>;
  using PackedScores = sm80::PackedScores<Traits, kColumns>;

  KeptKeys<Traits, kColumns, true> keys_;
  const ptx::shared_address shared_;
  RowGradients<Traits> dK_ = {}, dV_ = {};

 public:
  explicit FLASHSMITH_DEVICE SumsBackwardBlock(const BackwardKernelArgs &args)
      : keys_(args), shared_(ptx::shared_memory()) {}

  FLASHSMITH_DEVICE void run() {
    if (!keys_.is_there()) return;
    Visit visit = keys_.first();
    int sums = kNone;  // index of the sums of the previous visit
    if (!keys_.is_over(visit)) {
      keys_.load_kept(shared_ + Traits::K_offset, shared_ + Traits::V_offset);
      keys_.load_visited(shared_ + stage_of(0), visit);
    }
    int turn = 0;  // alternates between 0 and 1
    for (; !keys_.is_over(visit); turn ^= 1) {
      ptx::cp_async_wait_group<0>();
      ptx::barrier_sync();  // this stage and the last dS have arrived, the others have been read
      if (kTwoStages) load_after(visit, turn ^ 1);
      if (sums != kNone && is_early()) add_dQ(sums, turn ^ 1);
      compute_scores(visit, turn);
      if (sums != kNone && !is_early()) add_dQ(sums, turn ^ 1);
      sums = keys_.sums_place(visit);
      if constexpr (Traits::shares_weights) add_key_gradients(visit, turn);
      if (!kTwoStages) {
        ptx::barrier_sync();
        load_after(visit, turn);
      }
      visit = keys_.after({ptx::recomputed(visit.row), visit.head});
    }
    ptx::barrier_sync();
    if (sums != kNone) add_dQ(sums, turn ^ 1);
    store();
  }

 private:
  // The following indices are recomputed, so that nothing derived from them stays in a register:
  // the loop has none to spare.
  static FLASHSMITH_DEVICE int thread() { return ptx::recomputed(ptx::thread_index()); }
  static FLASHSMITH_DEVICE int lane() { return thread() % kWarpSize; }
  static FLASHSMITH_DEVICE int warp() { return thread() / kWarpSize; }

  // The following functions return the offset that this lane addresses in the first fragment of a
  // tile: see backward_gemm.cuh.
  static FLASHSMITH_DEVICE int rows_offset() { return Tile::K_lane_offset(lane()); }
  static FLASHSMITH_DEVICE int columns_offset() { return Tile::lane_offset(lane()); }

  // Returns whether this warp computes dQ before the scores of the next tile. The other half of the
  // warps does so after them: additions to memory stall a warp, and run under the products of
  // another.
  static FLASHSMITH_DEVICE bool is_early() { return warp() >= Traits::n_warps / 2; }

  // Returns this warp's first key, in the block.
  static FLASHSMITH_DEVICE int warp_row() {
    return warp() / Traits::column_groups * Traits::rows_per_warp;
  }
  // Returns the first query of a tile whose scores this warp computes.
  static FLASHSMITH_DEVICE int warp_query() {
    if constexpr (Traits::column_groups == 1) return 0;
    return warp() % Traits::column_groups * kQueries;
  }

  // The following functions return the offsets in shared memory of a turn's Q, dO and statistics,
  // and of its dS.
  static FLASHSMITH_DEVICE int stage_of(int turn) {
    return Traits::stages_offset + (kTwoStages ? turn * Traits::stage_bytes : 0);
  }
  static FLASHSMITH_DEVICE int dS_of(int turn) {
    return Traits::dS_offset + turn * Traits::dS_bytes;
  }

  FLASHSMITH_DEVICE void load_after(const Visit &visit, int turn) const {
    const Visit next = keys_.after(visit);
    if (!keys_.is_over(next)) keys_.load_visited(shared_ + stage_of(turn), next);
  }

  // ---- scores ----

  FLASHSMITH_DEVICE void compute_scores(const Visit &visit, int turn) {
#pragma unroll 1
    for (int i = 0; i < kQueries; i += kColumns) {
      const int query = warp_query() + i;
      compute_scores({visit.row + query, visit.head}, query, stage_of(turn), dS_of(turn));
    }
  }

  // Computes the scores of kColumns queries, from `query` of the tile on.
  FLASHSMITH_DEVICE void compute_scores(const Visit &visit, int query, int stage, int dS_buffer) {
    PackedScores weights = {}, gradients = {};
    const bool is_seen = !kMasked || keys_.has_scores(visit, warp_row());
    if (is_seen) compute_scores(weights, gradients, visit, query, stage);
    store_scores<Traits, kColumns>(gradients, shared_ + dS_buffer, warp_row(), query);
    if constexpr (Traits::shares_weights) {
      store_scores<Traits, kColumns>(weights, shared_ + Traits::P_offset, warp_row(), query);
    } else if (is_seen) {
      const int Q = stage + Traits::B1_offset + query * Tile::kRowBytes + columns_offset();
      gemm_with_columns<Traits, kColumns>(dK_, gradients, shared_, Q);
    }
  }

  // Computes P and dS. If P stays in registers, this adds to dV as well.
  FLASHSMITH_DEVICE void compute_scores(PackedScores &weights, PackedScores &gradients,
                                        const Visit &visit, int query, int stage) {
    const ptx::shared_address statistics = shared_ + stage + Traits::statistics_offset;
    const int row = warp_row(), kept = row * Tile::kRowBytes + columns_offset();
    const int Q = stage + Traits::B1_offset + query * Tile::kRowBytes;
    const int dO = Q + Traits::B2_offset - Traits::B1_offset;
    Scores P, dS, factor;
    gemm_with_rows<Traits, kColumns>(P, shared_, Traits::K_offset + kept, Q + rows_offset());
    keys_.change(P, factor, visit, row);
    keys_.become_exponents(P, statistics, visit);
    keys_.mask(P, visit, row);
    exponentiate<Traits>(P);
    if constexpr (!Traits::shares_weights) {
      pack_scores<Traits, kColumns>(weights, P);
      gemm_with_columns<Traits, kColumns>(dV_, weights, shared_, dO + columns_offset());
    }
    gemm_with_rows<Traits, kColumns>(dS, shared_, Traits::V_offset + kept, dO + rows_offset());
    keys_.subtract_delta(dS, statistics, visit);
    if constexpr (Traits::shares_weights) pack_scores<Traits, kColumns>(weights, P);
    multiply<Traits>(dS, P);
    if constexpr (Traits::Score::kHasFactor) multiply_seen<Traits>(dS, factor);
    pack_scores<Traits, kColumns>(gradients, dS);
  }

  // ---- gradients ----

  // Adds to dV and dK, from the weights and dS of all warps that share this warp's keys.
  FLASHSMITH_DEVICE void add_key_gradients(const Visit &visit, int turn) {
    if (kMasked && !keys_.has_scores(visit, warp_row(), Traits::B_r)) return;
    sync_column_groups<Traits>();
    const int scores = warp_row() * ScoreTile::kRowBytes + ScoreTile::lane_offset(lane());
    const int columns = Tile::fragment_offset(columns_offset(), 0, column_group<Traits>());
    gemm_of_keys<Traits>(dV_, shared_, Traits::P_offset + scores,
                         stage_of(turn) + Traits::B2_offset + columns);
    gemm_of_keys<Traits>(dK_, shared_, dS_of(turn) + scores,
                         stage_of(turn) + Traits::B1_offset + columns);
  }

  // Adds to dQ of the visit whose dS is in the buffer of `turn`.
  FLASHSMITH_DEVICE void add_dQ(int place, int turn) const {
    constexpr int kGroups = Traits::dQ_column_groups, kPairs = Traits::dQ_pairs * kGroups;
    const int group = warp() % kGroups, tile = warp() / kGroups * Traits::dQ_tiles;
    float *sums = keys_.sums(place);
    sums += flashsmith::sums_place<Traits::sums_by_chunks>(2 * group, tile * kWarpSize + lane(), 0);
#pragma unroll 1
    for (int pair = 0; pair < Traits::pairs; pair += kPairs) {
      dQFragments<Traits> dQ;
      gemm_of_queries<Traits>(
          dQ, shared_,
          dS_of(turn) + ScoreTile::fragment_offset(ScoreTile::K_lane_offset(lane()), 0, tile),
          Traits::K_offset + Tile::fragment_offset(columns_offset(), 0, pair + group));
#pragma unroll
      for (int m = 0; m < Traits::dQ_tiles; m++) {
#pragma unroll
        for (int n = 0; n < Traits::dQ_pairs * 2; n++) {
          const int chunk = n / 2 * kGroups * 2 + n % 2;
          add_to_sums<Traits::sums_by_chunks>(sums, chunk, m * kWarpSize, n_tile(dQ[m], n));
        }
      }
      sums += flashsmith::sums_place<Traits::sums_by_chunks>(2 * kPairs, 0, 0);
    }
  }

  FLASHSMITH_DEVICE void store() const {
    const int row = warp_row(), bytes = row * Tile::kRowBytes;
    keys_.store_second(dV_, shared_ + Traits::V_offset + bytes, row);
    keys_.store_first(dK_, shared_ + stage_of(0) + bytes, row);
  }
};

}  // namespace flashsmith::sm80
