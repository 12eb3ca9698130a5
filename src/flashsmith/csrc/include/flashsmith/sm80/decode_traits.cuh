// A configuration of decode at compile time: every number that its kernels derive from it, each
// beside the assertion that keeps it sound. flashsmith.configs states the same conditions in Python
// (problems()).
#pragma once

#include <cstddef>

#include "flashsmith/attention/decode_sequence.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/attention/softmax.cuh"
#include "flashsmith/sm80/decode_arguments.cuh"
#include "flashsmith/sm80/traits.cuh"
#include "flashsmith/types.cuh"

namespace flashsmith::sm80 {

// The layout of rows of K and V in shared memory, in units of 16 bits.
template <int kRowUnits>
struct CacheTileShape {
  static constexpr struct {
    bool swizzled = true;
  } config{};
  static constexpr int d_head = kRowUnits, row_padding = 0;
};

template <FlashDecodeKernelConfig CFG, Variant VARIANT = Variant{}>
struct StaticDecodeKernelConfig {
  using value_t = value_type<CFG.dtype>;
  static constexpr bool fp8_cache = CFG.fp8_cache, per_token_scale = CFG.per_token_scale;
  using cache_t = std::conditional_t<fp8_cache, e4m3_t, value_t>;
  // The type of P and V in registers: e4m3 is exact in FP16, and P is finer than in BF16.
  using weight_t = std::conditional_t<fp8_cache, half_t, value_t>;
  static constexpr int d_head = CFG.d_head, B_r = CFG.B_r, B_c = CFG.B_c;
  static constexpr int n_warps = CFG.n_warps, n_stages = CFG.n_stages;
  static constexpr int blocks_per_SM = CFG.blocks_per_SM, n_threads = threads_per_block(CFG);
  static_assert(CFG.dtype == ScalarType::Half || CFG.dtype == ScalarType::BFloat16,
                "dtype is FP16 or BF16");
  static_assert(d_head == 64 || d_head == 96 || d_head == 128 || d_head == 192 || d_head == 256,
                "d_head is 64, 96, 128, 192 or 256");
  static_assert(kRowsOfWarp == kMmaM && (B_r == 16 || B_r == 32 || B_r == 64),
                "B_r is 16, 32 or 64: a warp has the rows of one mma");
  static_assert(B_c == 16 || B_c == 32 || B_c == 64, "B_c is 16, 32 or 64");
  static_assert(n_warps == 2 || n_warps == 4 || n_warps == 8, "n_warps is 2, 4 or 8");
  static_assert(fp8_cache || !per_token_scale, "keys and values of 16 bits have no scales");
  static_assert(n_stages >= 2 && n_stages <= 8, "n_stages is 2 to 8");
  static_assert(blocks_per_SM >= 1 && blocks_per_SM <= 4, "blocks_per_SM is 1 to 4");

  // The warps that visit the same keys form a team.
  static constexpr int row_warps = flashsmith::row_warps(CFG), n_teams = flashsmith::n_teams(CFG);
  static constexpr int team_threads = row_warps * kWarpSize;
  static_assert(n_teams * row_warps == n_warps, "n_warps is a multiple of B_r / 16, a team");
  static_assert(B_c <= team_threads, "a lane looks up the page of one key");
  static_assert(!per_token_scale || row_warps == 1, "a warp copies the scales of its own keys");

  // The granularity of the split-KV schedule (attention/key_splits.cuh): the last block of a work
  // tile combines all partial results, more slowly the longer rows are.
  static constexpr int min_steps = 2 * row_warps, many_splits = d_head > 128 ? 12 : 32;
  static constexpr int min_steps_of_many = (d_head > 128 ? 32 : 16) * row_warps;
  static constexpr int splits_at_once = flashsmith::splits_at_once(CFG);
  static constexpr int range_bytes = 256 << 10;  // read in the time that a work range costs
  static constexpr int range_cost =
      range_bytes / (2 * B_c * n_teams * d_head * cache_element_bytes(CFG));

  // The layout of tiles in shared memory.
  static constexpr struct {
    bool swizzled = true;
  } config{};
  static constexpr int row_padding = 0;
  static constexpr int cache_bytes = cache_element_bytes(CFG);
  static constexpr int cache_chunk = kChunkBytes / cache_bytes;  // in elements
  using CacheTile = CacheTileShape<d_head * cache_bytes / kElementBytes>;

  using Mask = BandMask<VARIANT.causal, VARIANT.window>;
  using Score =
      ScoreChanges<value_t, VARIANT.softcap, VARIANT.alibi, false, UserScore<VARIANT.score>>;
  using Sequence = DecodeSequence;
  static constexpr bool has_sinks = VARIANT.sinks, padded = VARIANT.padded;
  static_assert(!VARIANT.bias, "decode adds no bias");
  static_assert(!VARIANT.dropout, "decode drops no weights");
  static_assert(!VARIANT.varlen, "lengths are arguments of every decode");
  static constexpr SoftmaxPolicy softmax = {
      .fold_scale = true, .lazy_rescale_log2 = 8, .stale_maximum = false, .fma_exponentials = 0};

  // The products, in the form of sm80/gemm.cuh: one warp has 16 rows.
  static constexpr int m_tiles = 1, S_n_tiles = B_c / kMmaN, O_n_tiles = d_head / kMmaN;
  static constexpr int QK_fragments = d_head / kMmaK, PV_fragments = B_c / kMmaK;
  static constexpr bool Q_in_registers = d_head <= kLongestDecodeQInRegisters;
  // The type of Q and K: e4m3 is converted to FP16 by one instruction, to BF16 by six. Rows of Q
  // are scaled to FP16's range by powers of two, and the scores are scaled back.
  static constexpr bool scales_Q = fp8_cache && Q_in_registers && !is_half<value_t>;
  using score_t = std::conditional_t<scales_Q, half_t, value_t>;
  using QSchedule = FragmentSchedule<QK_fragments, Q_in_registers ? 0 : 2, !Q_in_registers>;
  using KSchedule = FragmentSchedule<QK_fragments, 2, true>;
  using ByteSchedule = FragmentSchedule<QK_fragments / 2, 1, true>;  // two fragments' columns

  struct StageRows {
    alignas(128) cache_t K[B_c * d_head];
    alignas(128) cache_t V[B_c * d_head];
  };
  struct ScaledRows {
    StageRows rows;
    alignas(128) float K_scales[kWarpSize], V_scales[kWarpSize];
  };
  using Stage = std::conditional_t<per_token_scale, ScaledRows, StageRows>;
  struct SharedMemory {
    Stage rings[n_teams][n_stages];
    alignas(128) value_t Q[Q_in_registers ? 1 : B_r * d_head];
    alignas(128) uint32_t arrived;
  };
  static constexpr int stage_bytes = sizeof(Stage), V_offset = offsetof(StageRows, V);
  static constexpr int K_scales_offset = offsetof(ScaledRows, K_scales);
  static constexpr int V_scales_offset = offsetof(ScaledRows, V_scales);
  static constexpr int ring_bytes = n_stages * stage_bytes;
  static constexpr int Q_offset = offsetof(SharedMemory, Q);
  static constexpr int arrived_offset = offsetof(SharedMemory, arrived);
  static_assert(sizeof(SharedMemory) == shared_memory_bytes(CFG),
                "the host asks for as much shared memory as the kernel uses");

  // A team's partial results are stored through its ring: rows of O in FP32, padded so that the
  // lanes of one pass of a quad reach all banks, and behind them two words a row.
  static constexpr int sum_row_padding = fp8_cache ? 16 : 8;
  static constexpr int sum_row_bytes = (d_head + sum_row_padding) * static_cast<int>(sizeof(float));
  static constexpr int stats_offset = B_r * sum_row_bytes;
  static_assert(stats_offset + B_r * kStatsPerRow * static_cast<int>(sizeof(float)) <= ring_bytes,
                "a team's ring has room for its sums");
};

}  // namespace flashsmith::sm80
