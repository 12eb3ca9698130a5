// The sm90 backward as host and device see it: configuration, kernel arguments and launch sizes.
#pragma once

#include "flashsmith/backward_params.h"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith {

// The scope of a warpgroup's turn with the tensor cores: no turns, from dV to dK of a block, or
// from dV of a block to dP of the next.
enum class PingPongScope : int8_t { none, gradients, gradients_and_scores };

// One point of the configuration space of the sm90 family's backward. The fields, in this order,
// are those of the Python class of this name, and are described in docs/knobs.md.
struct Sm90BackwardKernelConfig {
  ScalarType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warpgroups;
  int Q_stages;
  int dO_stages;
  int V_steps_in_registers;
  int turns;
  bool persistent;
  bool dQ_in_order;
  bool skip_unseen;
  bool split_groups;

  constexpr auto operator<=>(const Sm90BackwardKernelConfig &) const = default;
};

// The parts into which the query heads of each group are divided, if the configuration splits
// groups, and the FP32 sums of dK and dV (backward_key_sums.cuh). A single part has no sums.
struct GroupPartArgs {
  float *__restrict__ sums;  // in the workspace
  int n_parts, heads_per_part;
  // The number of blocks of kSummedKeys keys that a head has in all, and in one batch entry of the
  // tensors; and whether all sequences lie in one batch entry. All are 0 if there are no sums.
  int all_key_blocks, n_key_blocks;
  bool packed_k;
};

// A kernel takes this as a `const __grid_constant__` parameter: bulk copies read the maps there.
//
// The maps have the layout of the forward kernels' (arguments.cuh), with boxes of kStatisticsRows
// (Q, dO) or B_c rows (K, V).
struct Sm90BackwardKernelArgs {
  ptx::TensorMap Q_map, dO_map, K_map, V_map;
  ProblemArgs problem;
  GradientArgs gradient;
  // The number of rows between batch entries of a tensor, for maps of five dimensions.
  int Q_batch_rows, dO_batch_rows, K_batch_rows, V_batch_rows;
  int heads_per_group;        // parts of heads of K, see head_groups.cuh
  int query_heads_per_group;  // heads of Q, in kernels whose blocks keep queries
  GroupPartArgs parts;
  // The tiles that start together, of parts of heads of a sequence, if there is a table of key
  // tiles (attention/key_tile_table.cuh): `problem.tiles`, with room for `problem.n_Q_blocks`
  // entries.
  int tiles_per_group;
};

typedef void (*sm90_backward_kernel_fn)(const Sm90BackwardKernelArgs);

// The kernels of one call, in the order of their launches. `key_tile_table` is null if sequences
// have the same lengths, `sinks` if the variant has none, `key_sums` if groups are not split,
// `conversion` if the last block of keys converts dQ.
struct Sm90BackwardKernels {
  sm90_backward_kernel_fn key_tile_table, statistics, sinks, main, key_sums, conversion;
};

// Returns whether the warpgroups share the keys of a block. Each of them computes the scores of 32
// keys, and its share of the columns of dK and dV of all keys: those of 64 keys would not fit in
// its registers.
constexpr bool shares_keys(const Sm90BackwardKernelConfig &cfg) { return cfg.d_head > 128; }

constexpr int threads_per_block(const Sm90BackwardKernelConfig &cfg) {
  return (cfg.n_warpgroups + 1) * kWarpgroupSize;
}

// map_columns returns the width of a box, and map_swizzle its swizzle: 128 bytes, or 64 if a row of
// d_head is not a multiple of 128.
constexpr int map_columns(const Sm90BackwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? 64 : 32;
}

constexpr ptx::Swizzle map_swizzle(const Sm90BackwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? ptx::Swizzle::bytes_128 : ptx::Swizzle::bytes_64;
}

// Returns the columns of dQ that a warpgroup computes at a time: its share, if that is whole boxes
// of K; else all columns, and each warpgroup takes every n_warpgroups-th block.
constexpr int dQ_columns(const Sm90BackwardKernelConfig &cfg) {
  const int share = cfg.d_head / cfg.n_warpgroups;
  return cfg.d_head % cfg.n_warpgroups == 0 && share % map_columns(cfg) == 0 ? share : cfg.d_head;
}

// Returns the number of parts of a block's dQ, each of which is accumulated by itself.
constexpr int dQ_parts(const Sm90BackwardKernelConfig &cfg) { return cfg.d_head / dQ_columns(cfg); }

// Returns whether a warp of the producer can convert dQ of heads that are done
// (backward_converter.cuh).
constexpr bool converts_early(const Sm90BackwardKernelConfig &cfg) {
  return cfg.persistent && !cfg.dQ_in_order;
}

// Returns the number of threads that add dQ: one for each warpgroup, but at most two beside a warp
// that converts. Where they add in order, each waits.
constexpr int dQ_adders(const Sm90BackwardKernelConfig &cfg) {
  return converts_early(cfg) ? 2 : cfg.n_warpgroups;
}

// Returns whether the parts of a group add dK and dV to the same sums in memory. That leaves the
// order of the additions open; so kernels that add dQ in order have sums for each part.
constexpr bool adds_parts(const Sm90BackwardKernelConfig &cfg) {
  return cfg.split_groups && !cfg.dQ_in_order;
}

// The columns of a block's dQ that are converted at a time, and the buffers of their sums: as many
// as shared memory has room for.
constexpr int kConvertedColumns = 32, kConvertedFloats = kStatisticsRows * kConvertedColumns;

constexpr int n_converted_buffers(const Sm90BackwardKernelConfig &cfg) {
  return !converts_early(cfg) ? 0 : shares_keys(cfg) ? 1 : 2;
}

// The buffers of dS; if warpgroups share keys, one is of P, and they wait for each other after they
// have written either (backward_shared_keys.cuh).
constexpr int kDSBuffers = 2;

constexpr int n_dS_barriers(const Sm90BackwardKernelConfig &cfg) {
  return shares_keys(cfg) ? 0 : kDSBuffers;
}

// The keys of a warpgroup, whose dK and dV are one block of FP32 sums.
constexpr int kSummedKeys = 64;

// The entries through which the warps of a block learn which tiles it draws.
struct alignas(16) TileEntry {
  uint32_t words[4];
};
constexpr int kTileEntries = 2, kEntryBytes = sizeof(TileEntry);

constexpr int n_tile_entries(const Sm90BackwardKernelConfig &cfg) {
  return cfg.persistent || cfg.dQ_in_order ? kTileEntries : 0;
}

// Returns the number of buffers into which sums of dQ are loaded back. They are the buffers from
// which dQ is added.
constexpr int n_sum_buffers(const Sm90BackwardKernelConfig &cfg) {
  return cfg.dQ_in_order ? cfg.n_warpgroups : 0;
}

// Returns the number of barriers, in pairs of full and empty: for each stage of Q and dO, for the
// buffers of dS, for dQ on its way out and for its sums on their way back, for K with V, for
// entries, and for sums that are converted.
constexpr int n_barriers(const Sm90BackwardKernelConfig &cfg) {
  return 2 * (cfg.Q_stages + cfg.dO_stages + n_dS_barriers(cfg) + cfg.n_warpgroups +
              n_sum_buffers(cfg) + 1 + n_tile_entries(cfg) + n_converted_buffers(cfg));
}

// Shared memory holds tiles of K, V, Q and dO, dS of a block, FP32 dQ of each warpgroup,
// sums that are converted, statistics, barriers and entries.
constexpr int shared_memory_bytes(const Sm90BackwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2, kSumBytes = 4, kBarrierBytes = 8;
  const int elements = (2 * cfg.B_c + (cfg.Q_stages + cfg.dO_stages) * cfg.B_r) * cfg.d_head +
                       kDSBuffers * cfg.B_r * cfg.B_c;
  const int sums =
      cfg.n_warpgroups * cfg.B_r * dQ_columns(cfg) + n_converted_buffers(cfg) * kConvertedFloats;
  const int statistics = cfg.Q_stages * 2 * kStatisticsRows;
  return elements * kElementBytes + (sums + statistics) * kSumBytes +
         n_barriers(cfg) * kBarrierBytes + n_tile_entries(cfg) * kEntryBytes;
}

}  // namespace flashsmith
