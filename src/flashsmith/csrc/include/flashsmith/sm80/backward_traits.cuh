// A configuration of the backward at compile time: every number that its kernels derive from it,
// each beside the assertion that keeps it sound. flashsmith.configs states the same conditions in
// Python (problems()).
#pragma once

#include <cstddef>

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/row_statistics.cuh"
#include "flashsmith/attention/score_gradient.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/sm80/backward_arguments.cuh"
#include "flashsmith/sm80/traits.cuh"
#include "flashsmith/types.cuh"

namespace flashsmith::sm80 {

// The gradients that a kernel computes. dQ keeps queries and visits keys, the others keep keys and
// visit queries.
enum class GradientPass : uint8_t { dQ, dK_dV, dK, dV };

// Returns the registers of a thread for the scores (S, dP and factors, if any) of `columns` visited
// rows, and for gradients.
constexpr int accumulator_registers(const FlashBackwardKernelConfig &cfg, GradientPass gradients,
                                    bool has_factors, int columns) {
  const int m_tiles = cfg.B_r / cfg.n_warps / kMmaM;
  const int outputs = gradients == GradientPass::dK_dV ? 2 : 1;
  const int scores = gradients == GradientPass::dV ? 1 : has_factors ? 3 : 2;
  return m_tiles * (outputs * cfg.d_head + scores * columns) / 2;
}

// The number of rows, columns and mma tiles in a configuration's tiles.
template <FlashBackwardKernelConfig CFG>
struct BackwardKernelTileShapes {
  static constexpr int d_head = CFG.d_head, B_r = CFG.B_r, B_c = CFG.B_c, n_warps = CFG.n_warps;
  static_assert(d_head == 64 || d_head == 96 || d_head == 128 || d_head == 192 || d_head == 256,
                "d_head is 64, 96, 128, 192 or 256");
  static_assert(B_r == 64 || B_r == 128, "B_r is 64 or 128");
  static_assert(B_c == 32 || B_c == 64, "B_c is 32 or 64: it divides a block of row statistics");
  static_assert(n_warps == 4 || n_warps == 8, "n_warps is 4 or 8");
  static_assert(B_r % (n_warps * kMmaM) == 0, "each warp works on at least 16 kept rows");
  static_assert(CFG.n_stages == 1 || CFG.n_stages == 2, "n_stages is 1 or 2");

  static constexpr int kept_rows = B_r, visited_rows = B_c;
  static constexpr int column_groups = 1;  // each warp has all columns of its rows' gradients
  static constexpr int rows_per_warp = B_r / n_warps;
  static constexpr int m_tiles = rows_per_warp / kMmaM;  // mma tiles of a warp, along its rows
  static constexpr int n_stages = CFG.n_stages;
};

template <FlashBackwardKernelConfig CFG, Variant VARIANT = Variant{}>
struct StaticBackwardKernelConfig : BackwardKernelTileShapes<CFG> {
  using N = BackwardKernelTileShapes<CFG>;  // Traits::B_r is Traits::N::B_r, through the base
  using value_t = value_type<CFG.dtype>;
  static_assert(CFG.dtype == ScalarType::Half || CFG.dtype == ScalarType::BFloat16,
                "dtype is FP16 or BF16");

  // The layout of tiles in shared memory, and how they are copied there.
  static constexpr struct {
    bool swizzled = true, async_copy = true;
  } config{};
  static constexpr int row_padding = 0;

  using Mask = BandMask<VARIANT.causal, VARIANT.window>;
  using Score = ScoreGradients<value_t, VARIANT.softcap, VARIANT.alibi, VARIANT.bias,
                               UserScore<VARIANT.score>, UserScoreGradient<VARIANT.score>>;
  using Sequence = SequenceOf<VARIANT.varlen>;
  using Dropout = DropoutOf<VARIANT.dropout>;
  static constexpr bool has_sinks = VARIANT.sinks, has_bias = VARIANT.bias;
  static_assert(!VARIANT.paged, "no gradients are written into pages");
  static constexpr bool padded = VARIANT.padded;
  static constexpr bool split_dK_dV = CFG.split_dK_dV;
  static constexpr DQAccumulation dQ_accumulation = DQAccumulation::registers;
  static constexpr bool adds_parts = false;
  static constexpr int n_threads = threads_per_block(CFG);

  static constexpr int kMinColumns = 32;
  static_assert(accumulator_registers(CFG, CFG.split_dK_dV ? GradientPass::dK : GradientPass::dK_dV,
                                      false, kMinColumns) <= 208,
                "the accumulators of S, dP and gradients leave 47 registers for fragments and "
                "addresses; split_dK_dV makes them less");

  // Whether changes of scores or weights depend on positions, which takes registers.
  static constexpr bool knows_positions = Score::kChanges || Dropout::kDrops;

  // Returns the number of visited rows whose scores are in registers at a time: all rows of a tile,
  // if that leaves room for fragments and addresses, and for positions.
  static constexpr int columns(GradientPass gradients) {
    const int room = knows_positions ? 160 : 192;
    return accumulator_registers(CFG, gradients, Score::kHasFactor, N::B_c) <= room ? N::B_c
                                                                                    : kMinColumns;
  }

  // Returns the number of blocks that should be resident on an SM: given this number, ptxas uses
  // the registers that it leaves each thread.
  static constexpr int blocks_per_SM(GradientPass gradients) {
    constexpr int kRegistersPerSM = 65536, kFragmentsAndAddresses = knows_positions ? 80 : 60;
    const int registers =
        accumulator_registers(CFG, gradients, Score::kHasFactor, columns(gradients)) +
        kFragmentsAndAddresses;
    const int blocks = kRegistersPerSM / (n_threads * registers);
    return blocks > 1 ? blocks : 1;
  }

  // Two tiles of kept rows, through which the gradients are stored, and in every stage two tiles of
  // visited rows with the statistics of queries.
  struct Stage {
    alignas(128) value_t B1[N::B_c * N::d_head];
    alignas(128) value_t B2[N::B_c * N::d_head];
    alignas(128) float statistics[kStatisticsFloats];
  };
  struct SharedMemory {
    alignas(128) value_t A1[N::B_r * N::d_head];
    alignas(128) value_t A2[N::B_r * N::d_head];
    Stage stages[N::n_stages];
  };
  static constexpr int A1_offset = offsetof(SharedMemory, A1);
  static constexpr int A2_offset = offsetof(SharedMemory, A2);
  static constexpr int stages_offset = offsetof(SharedMemory, stages), stage_bytes = sizeof(Stage);
  static constexpr int B1_offset = offsetof(Stage, B1), B2_offset = offsetof(Stage, B2);
  static constexpr int statistics_offset = offsetof(Stage, statistics);
  static_assert(sizeof(SharedMemory) == shared_memory_bytes(CFG),
                "the host asks for as much shared memory as the kernels use");
};

}  // namespace flashsmith::sm80
