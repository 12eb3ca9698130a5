// A configuration of the backward at compile time: every number that the kernel derives from it,
// each beside the assertion that keeps it sound. flashsmith.configs states the same conditions in
// Python (problems()).
#pragma once

#include <cstddef>

#include "flashsmith/attention/query_range.cuh"
#include "flashsmith/attention/row_statistics.cuh"
#include "flashsmith/attention/score_gradient.cuh"
#include "flashsmith/sm90/backward_arguments.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

template <Sm90BackwardKernelConfig CFG, Variant VARIANT = Variant{}>
struct BackwardTraits {
  static constexpr Sm90BackwardKernelConfig config = CFG;
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
  static constexpr DQAccumulation dQ_accumulation =
      CFG.dQ_in_order ? DQAccumulation::ordered : DQAccumulation::atomic;
  static constexpr bool converts_early = flashsmith::converts_early(CFG);
  static constexpr bool sums_by_chunks = true;
  static constexpr bool splits_groups = CFG.split_groups;
  static constexpr bool adds_parts = flashsmith::adds_parts(CFG);
  static constexpr int key_sums_floats = 2 * kSummedKeys * CFG.d_head;  // dK and dV of a block
  // Whether key tiles may be listed in a table, and whether the loading thread finds them there for
  // the other warps.
  static constexpr bool has_key_table = VARIANT.varlen;
  static constexpr bool announces_blocks = VARIANT.varlen && n_tile_entries(CFG) > 0;
  static_assert(!VARIANT.bias, "the sm90 family gives no gradient of a bias");
  // The type that keeps derivatives of scores until dP has arrived: softcap's are from 0 to 1.
  using factor_t = std::conditional_t<UserScoreGradient<VARIANT.score>::kIsOne, half_t, value_t>;

  static constexpr int d_head = CFG.d_head, B_r = CFG.B_r, B_c = CFG.B_c;
  static constexpr int n_warpgroups = CFG.n_warpgroups;
  static constexpr int Q_stages = CFG.Q_stages, dO_stages = CFG.dO_stages;
  static constexpr bool shares_keys = flashsmith::shares_keys(CFG);
  static_assert(d_head == 64 || d_head == 96 || d_head == 128 || d_head == 192,
                "d_head is 64, 96, 128 or 192");
  static_assert(B_r == kStatisticsRows, "blocks of queries are those of row statistics");
  static_assert(n_warpgroups == 2 || n_warpgroups == 3, "2 or 3 warpgroups share the keys");
  static_assert(n_warpgroups == 2 || d_head == 64 || shares_keys,
                "dK and dV of three warpgroups fit in registers for d_head 64");
  static_assert(n_warpgroups == 3 || !shares_keys,
                "three warpgroups share keys, each with 64 columns of the gradients");
  static_assert(n_warpgroups == 2 || shares_keys || !Score::kHasFactor,
                "two warpgroups have registers for the derivatives of scores");
  // The keys of a warpgroup's scores.
  static constexpr int score_keys = shares_keys ? kWgmmaM / 2 : kWgmmaM;
  static_assert(B_c == n_warpgroups * score_keys,
                "each warpgroup works on the 64 keys of a wgmma, or on 32 shared ones");
  static_assert(Q_stages >= 1 && Q_stages <= 4, "there are 1 to 4 stages of Q");
  static_assert(dO_stages >= 1 && dO_stages <= 4, "there are 1 to 4 stages of dO");
  static_assert(!shares_keys || Q_stages >= 2,
                "warpgroups that share keys use two blocks of Q at a time");
  static_assert(!shares_keys || dO_stages == 1,
                "P is free when the next block of dO is in the place of the last");
  static_assert(!shares_keys || (CFG.turns == 0 && !CFG.skip_unseen && !CFG.split_groups),
                "warpgroups that share keys have no turns, no keys that only they see, and no sums "
                "of parts");

  static constexpr int cluster_keys = B_c;  // blocks do not share queries

  static constexpr int n_threads = threads_per_block(CFG);
  static constexpr RegisterSplit registers = register_split(n_warpgroups);
  static constexpr int n_warpgroup_warps = kWarpgroupSize / kWarpSize;
  static constexpr int n_consumer_warps = n_warpgroups * n_warpgroup_warps;
  static constexpr int score_steps = d_head / kWgmmaK;  // of S and dP
  static constexpr int query_steps = B_r / kWgmmaK;     // of dK and dV
  static constexpr int key_steps = B_c / kWgmmaK;       // of dQ
  static constexpr int V_register_steps = CFG.V_steps_in_registers;
  // The steps of V that have registers beside dK, dV, S and dP: if registers run out, ptxas
  // serialises wgmma.
  static constexpr int max_V_register_steps = n_warpgroups == 3 ? 0
                                              : d_head == 128   ? 4
                                                                : score_steps;
  static_assert(V_register_steps >= 0 && V_register_steps <= max_V_register_steps,
                "as many steps of V dO^T take V from registers as there is room for");

  // A tile in shared memory is n_boxes boxes of a tensor map, which together are d_head wide.
  static constexpr ptx::Swizzle swizzle = map_swizzle(CFG);
  static constexpr int box_columns = map_columns(CFG), n_boxes = d_head / box_columns;
  static constexpr int row_bytes = box_columns * 2;
  static constexpr int query_box_bytes = B_r * row_bytes, key_box_bytes = B_c * row_bytes;
  static constexpr int query_tile_bytes = query_box_bytes * n_boxes;
  static constexpr int key_tile_bytes = key_box_bytes * n_boxes;

  // dS has a box for the keys of each warpgroup, and its rows are queries; so has P.
  static constexpr ptx::Swizzle dS_swizzle =
      shares_keys ? ptx::Swizzle::bytes_64 : ptx::Swizzle::bytes_128;
  static constexpr int dS_row_bytes = score_keys * 2, dS_box_bytes = B_r * dS_row_bytes;
  static constexpr int dS_bytes = n_warpgroups * dS_box_bytes;

  // dQ of a block is computed by all warpgroups, with their columns side by side, or by one
  // warpgroup in turn.
  static constexpr int dQ_columns = flashsmith::dQ_columns(CFG);
  static constexpr bool shares_dQ = dQ_columns != d_head;
  static constexpr int dQ_period = shares_dQ ? 1 : n_warpgroups;
  static constexpr int dQ_floats = B_r * dQ_columns;
  static constexpr int dQ_bytes = dQ_floats * 4;
  static constexpr int dQ_adders = flashsmith::dQ_adders(CFG);
  static constexpr int dQ_parts = flashsmith::dQ_parts(CFG);
  static constexpr int dQ_warps = shares_dQ ? n_consumer_warps : n_warpgroup_warps;

  static constexpr int kConvertedBuffers = n_converted_buffers(CFG);

  struct SharedMemory {
    SharedTile<key_tile_bytes> K, V;
    SharedTile<query_tile_bytes> Q[Q_stages], dO[dO_stages];
    SharedTile<dS_bytes> dS[kDSBuffers];
    float dQ[n_warpgroups][dQ_floats];
    [[no_unique_address]] Several<float, kConvertedBuffers * kConvertedFloats> converted;
    float statistics[Q_stages][kStatisticsFloats];
    uint64_t barriers[n_barriers(CFG)];
    [[no_unique_address]] Several<TileEntry, n_tile_entries(CFG)> entries;
  };
  static constexpr int K_offset = offsetof(SharedMemory, K);
  static constexpr int V_offset = offsetof(SharedMemory, V);
  static constexpr int Q_offset = offsetof(SharedMemory, Q);
  static constexpr int dO_offset = offsetof(SharedMemory, dO);
  static constexpr int dS_offset = offsetof(SharedMemory, dS);
  // If warpgroups share keys, the buffers of dS are those of P and dS.
  static constexpr int P_offset = dS_offset, shared_dS_offset = dS_offset + dS_bytes;
  static constexpr int dQ_offset = offsetof(SharedMemory, dQ);
  static constexpr int converted_offset = offsetof(SharedMemory, converted);
  static constexpr int statistics_offset = offsetof(SharedMemory, statistics);
  static constexpr int barriers_offset = offsetof(SharedMemory, barriers);
  static constexpr int entries_offset = offsetof(SharedMemory, entries);
  static_assert(sizeof(SharedMemory) == shared_memory_bytes(CFG),
                "the host asks for as much shared memory as the kernel uses");
};

}  // namespace flashsmith::sm90
