// A configuration of the sums backward at compile time: every number that its kernels derive from
// it, each beside the assertion that keeps it sound. flashsmith.configs states the same conditions
// in Python (problems()).
#pragma once

#include <cstddef>

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/row_statistics.cuh"
#include "flashsmith/attention/score_gradient.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/sm80/sums_backward_arguments.cuh"
#include "flashsmith/sm80/traits.cuh"
#include "flashsmith/types.cuh"

namespace flashsmith::sm80 {

// The shares of the warps: in the scores of a tile, in dK and dV, and in dQ.
template <Sm80SumsBackwardKernelConfig CFG>
struct SumsBackwardTileShapes {
  static constexpr int d_head = CFG.d_head, B_r = CFG.B_r, B_c = CFG.B_c, n_warps = CFG.n_warps;
  static constexpr int n_stages = CFG.n_stages, column_groups = CFG.column_groups;
  static_assert(d_head == 64 || d_head == 96 || d_head == 128 || d_head == 192 || d_head == 256,
                "d_head is 64, 96, 128, 192 or 256");
  static_assert(B_r == kStatisticsRows, "blocks of queries are those of row statistics");
  static_assert(B_c == 64 || B_c == 128, "B_c is 64 or 128: dK leaves through a stage");
  static_assert(n_warps == 4 || n_warps == 8, "n_warps is 4 or 8");
  static_assert(n_stages == 1 || n_stages == 2, "n_stages is 1 or 2");

  // The warps that share columns take pairs of n tiles in turn.
  static constexpr int pairs = d_head / (2 * kMmaN);
  static_assert(column_groups == 1 || column_groups == 2 || column_groups == 4,
                "1, 2 or 4 warps share keys");
  static_assert(pairs % column_groups == 0, "each of them has as many pairs of n tiles");

  static constexpr int kept_rows = B_c, visited_rows = B_r;
  static constexpr int key_groups = n_warps / column_groups;
  static constexpr int rows_per_warp = B_c / key_groups;
  static constexpr int queries_per_warp = B_r / column_groups;  // whose scores a warp computes
  static_assert(rows_per_warp % kMmaM == 0, "warps work on at least 16 keys");
  static constexpr int m_tiles = rows_per_warp / kMmaM;

  static constexpr int dQ_column_groups = pairs % (n_warps / 2) == 0 ? n_warps / 2 : 2;
  static constexpr int dQ_tiles = B_r / kMmaM / (n_warps / dQ_column_groups);
  // The pairs of n tiles that a warp computes at a time: all, if there are registers beside dK and
  // dV.
  static constexpr int dQ_pairs = dQ_tiles * pairs / dQ_column_groups <= 6
                                      ? pairs / dQ_column_groups
                                      : pairs / dQ_column_groups / 2;
};

// Returns the registers of a thread for the scores (S, dP and factors, if any) of `columns`
// queries, and for dK and dV.
constexpr int accumulator_registers(const Sm80SumsBackwardKernelConfig &cfg, bool has_factors,
                                    int columns) {
  const int m_tiles = cfg.B_c * cfg.column_groups / cfg.n_warps / kMmaM;
  const int scores = has_factors ? 3 : 2;
  return m_tiles * (2 * cfg.d_head / cfg.column_groups + scores * columns) / 2;
}

template <Sm80SumsBackwardKernelConfig CFG, Variant VARIANT = Variant{}>
struct SumsBackwardTraits : SumsBackwardTileShapes<CFG> {
  using N = SumsBackwardTileShapes<CFG>;  // Traits::B_r is Traits::N::B_r, through the base
  using value_t = value_type<CFG.dtype>;
  static_assert(CFG.dtype == ScalarType::Half || CFG.dtype == ScalarType::BFloat16,
                "dtype is FP16 or BF16");

  // The layout of tiles in shared memory, and how they are copied there: rows are padded by one
  // chunk, so that eight of them lie in different banks. That saves the registers that addresses of
  // swizzled fragments take.
  static constexpr struct {
    bool swizzled = false, async_copy = true;
  } config{};
  static constexpr int row_padding = kRowPadding;
  struct ScoreTile {
    static constexpr int d_head = N::B_r, row_padding = kRowPadding;
    static constexpr struct {
      bool swizzled = false;
    } config{};
  };

  using Mask = BandMask<VARIANT.causal, VARIANT.window>;
  using Score = ScoreGradients<value_t, VARIANT.softcap, VARIANT.alibi, VARIANT.bias,
                               UserScore<VARIANT.score>, UserScoreGradient<VARIANT.score>>;
  using Sequence = SequenceOf<VARIANT.varlen>;
  using Dropout = NoDropout;
  static_assert(!VARIANT.bias, "the sums backward gives no gradient of a bias");
  static_assert(!VARIANT.dropout, "the sums backward has no registers for dropout");
  static constexpr bool has_sinks = VARIANT.sinks, padded = VARIANT.padded;
  static_assert(!VARIANT.paged, "no gradients are written into pages");
  static constexpr DQAccumulation dQ_accumulation = DQAccumulation::atomic;
  static constexpr bool adds_parts = false;
  static constexpr bool sums_by_chunks = ptx::kHasWideAdds;
  static constexpr bool shares_weights = flashsmith::shares_weights(CFG);
  static constexpr int n_threads = threads_per_block(CFG);

  // The number of queries whose scores are in registers at a time: all of a warp's, if that leaves
  // room for fragments and addresses, and for changes of scores.
  static constexpr int kMinColumns = 16;
  static_assert(accumulator_registers(CFG, false, kMinColumns) <= 208,
                "the accumulators of S, dP and gradients leave 47 registers for fragments and "
                "addresses");
  static constexpr int columns_with_room() {
    const int room = Score::kChanges ? 160 : 192;
    int columns = N::queries_per_warp;
    while (columns > kMinColumns && accumulator_registers(CFG, Score::kHasFactor, columns) > room) {
      columns /= 2;
    }
    return columns;
  }
  static constexpr int columns = columns_with_room();

  // The number of blocks that should be resident on an SM: given this number, ptxas uses the
  // registers that it leaves each thread.
  static constexpr int blocks_per_SM =
      65536 / (n_threads * (accumulator_registers(CFG, Score::kHasFactor, columns) + 60));

  // dK is stored through the first stage, dV through V.
  struct Stage {
    alignas(128) value_t Q[N::B_r * row_elements(N::d_head)];
    alignas(128) value_t dO[N::B_r * row_elements(N::d_head)];
    alignas(128) float statistics[kStatisticsFloats];
  };
  struct SharedMemory {
    alignas(128) value_t K[N::B_c * row_elements(N::d_head)];
    alignas(128) value_t V[N::B_c * row_elements(N::d_head)];
    Stage stages[N::n_stages];
    alignas(
        128) value_t scores[score_buffers(CFG)][N::B_c * row_elements(N::B_r)];  // dS, then weights
  };
  static constexpr int K_offset = offsetof(SharedMemory, K), V_offset = offsetof(SharedMemory, V);
  static constexpr int stages_offset = offsetof(SharedMemory, stages), stage_bytes = sizeof(Stage);
  static constexpr int B1_offset = offsetof(Stage, Q), B2_offset = offsetof(Stage, dO);
  static constexpr int statistics_offset = offsetof(Stage, statistics);
  static constexpr int dS_offset = offsetof(SharedMemory, scores);
  static constexpr int dS_bytes = N::B_c * row_elements(N::B_r) * kElementBytes;
  static constexpr int P_offset = dS_offset + kDSBuffersOfSums * dS_bytes;
  static_assert(sizeof(SharedMemory) == shared_memory_bytes(CFG),
                "the host asks for as much shared memory as the kernels use");
};

}  // namespace flashsmith::sm80
