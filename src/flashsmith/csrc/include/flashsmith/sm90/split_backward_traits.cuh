// A configuration of the split backward at compile time: every number that its kernels derive from
// it, each beside the assertion that keeps it sound. flashsmith.configs states the same conditions
// in Python (problems()).
#pragma once

#include <cstddef>

#include "flashsmith/attention/row_statistics.cuh"
#include "flashsmith/attention/score_gradient.cuh"
#include "flashsmith/sm90/split_backward_arguments.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

template <Sm90SplitBackwardKernelConfig CFG, Variant VARIANT = Variant{}>
struct SplitBackwardTraits {
  static constexpr Sm90SplitBackwardKernelConfig config = CFG;
  using value_t = value_type<CFG.dtype>;
  static_assert(CFG.dtype == ScalarType::Half || CFG.dtype == ScalarType::BFloat16,
                "dtype is FP16 or BF16");

  using Mask = BandMask<VARIANT.causal, VARIANT.window>;
  using Score = ScoreGradients<value_t, VARIANT.softcap, VARIANT.alibi, VARIANT.bias,
                               UserScore<VARIANT.score>, UserScoreGradient<VARIANT.score>>;
  using Sequence = SequenceOf<VARIANT.varlen>;
  using Dropout = DropoutOf<VARIANT.dropout>;
  static constexpr bool has_sinks = VARIANT.sinks, padded = VARIANT.padded;
  static_assert(!VARIANT.paged, "no gradients are written into pages");
  static constexpr DQAccumulation dQ_accumulation = DQAccumulation::registers;
  static_assert(!VARIANT.bias && VARIANT.score == 0 && !VARIANT.softcap,
                "scores are changed by ALiBi alone: there are no registers for derivatives");

  static constexpr int d_head = CFG.d_head, B_r = CFG.B_r, B_c = CFG.B_c;
  static constexpr int n_warpgroups = CFG.n_warpgroups;
  static constexpr int K_stages = CFG.K_stages, V_stages = CFG.V_stages;
  static constexpr int Q_stages = CFG.Q_stages, dO_stages = CFG.dO_stages;
  static constexpr int cluster_size = CFG.cluster_size;
  static_assert(d_head == 64 || d_head == 96 || d_head == 128 || d_head == 192 || d_head == 256,
                "d_head is 64, 96, 128, 192 or 256");
  static_assert(B_r == kStatisticsRows && B_r == kWgmmaM,
                "tiles of queries are those of row statistics, and the rows of a wgmma");
  static_assert(B_c == kWgmmaM, "tiles of keys are the rows of a wgmma");
  static_assert(n_warpgroups == 2,
                "two warpgroups have the rows of dQ, or one of them dK and the other dV");
  static_assert(K_stages >= 2 && K_stages <= 4, "there are 2 to 4 stages of K: two are in use");
  static_assert(V_stages >= 1 && V_stages <= 4, "there are 1 to 4 stages of V");
  static_assert(Q_stages >= 2 && Q_stages <= 4, "there are 2 to 4 stages of Q: two are in use");
  static_assert(dO_stages >= 1 && dO_stages <= 4, "there are 1 to 4 stages of dO");
  static_assert(cluster_size == 1 || cluster_size == 2, "a cluster has one or two blocks");

  static constexpr int n_threads = threads_per_block(CFG);
  static constexpr RegisterSplit registers = register_split(n_warpgroups);
  static constexpr int n_warpgroup_warps = kWarpgroupSize / kWarpSize;
  static constexpr int n_consumer_warps = n_warpgroups * n_warpgroup_warps;
  static constexpr int score_steps = d_head / kWgmmaK;  // of S and dP
  static constexpr int query_steps = B_r / kWgmmaK;     // of dQ, dK and dV

  // A tile in shared memory, of Q, dO, K or V, is n_boxes boxes of a tensor map, which together are
  // d_head wide.
  static constexpr ptx::Swizzle swizzle = map_swizzle(CFG);
  static constexpr int box_columns = map_columns(CFG), n_boxes = d_head / box_columns;
  static constexpr int row_bytes = box_columns * 2;
  static constexpr int box_bytes = kStatisticsRows * row_bytes;
  static constexpr int query_box_bytes = box_bytes, key_box_bytes = box_bytes;
  static constexpr int tile_bytes = flashsmith::tile_bytes(CFG);
  static_assert(tile_bytes == n_boxes * box_bytes, "tiles are whole boxes");
  using Tile = SharedTile<tile_bytes>;

  // Blocks of a cluster have neighbouring keys, and visit the queries that see any of them.
  static constexpr int cluster_keys = cluster_size * B_c;
  static constexpr bool splits_groups = false, adds_parts = false;
  static constexpr bool has_key_table = false;
};

// The shared memory of a block of the kernel of dQ.
template <typename Traits>
struct dQMemory {
  using Tile = typename Traits::Tile;
  static constexpr int kPairs = Traits::K_stages + Traits::V_stages;
  struct SharedMemory {
    Tile Q[Traits::n_warpgroups], dO[Traits::n_warpgroups];
    Tile K[Traits::K_stages], V[Traits::V_stages];
    uint64_t barriers[2 * kPairs + Traits::n_warpgroups];
  };
  static constexpr int Q = offsetof(SharedMemory, Q), dO = offsetof(SharedMemory, dO);
  static constexpr int K = offsetof(SharedMemory, K), V = offsetof(SharedMemory, V);
  static constexpr int barriers = offsetof(SharedMemory, barriers);
  static_assert(sizeof(SharedMemory) == dQ_shared_memory_bytes(Traits::config),
                "the host asks for as much shared memory as the kernel of dQ uses");
};

// The shared memory of a block of the kernel of dK and dV.
template <typename Traits>
struct dKdVMemory {
  using Tile = typename Traits::Tile;
  static constexpr int kPairs = Traits::Q_stages + Traits::dO_stages + kPBuffers;
  static constexpr int kPBytes = Traits::B_r * Traits::B_c * 2;
  struct SharedMemory {
    Tile K, V;
    Tile Q[Traits::Q_stages], dO[Traits::dO_stages];
    SharedTile<kPBytes> P[kPBuffers];
    float statistics[Traits::Q_stages][kStatisticsFloats];
    uint64_t barriers[2 * kPairs + 1];
  };
  static constexpr int K = offsetof(SharedMemory, K), V = offsetof(SharedMemory, V);
  static constexpr int Q = offsetof(SharedMemory, Q), dO = offsetof(SharedMemory, dO);
  static constexpr int P = offsetof(SharedMemory, P);
  static constexpr int statistics = offsetof(SharedMemory, statistics);
  static constexpr int barriers = offsetof(SharedMemory, barriers);
  static_assert(sizeof(SharedMemory) == dK_dV_shared_memory_bytes(Traits::config),
                "the host asks for as much shared memory as the kernel of dK and dV uses");
};

}  // namespace flashsmith::sm90
