// The backward kernels of the sm90 family as host and device see them: configuration (how),
// arguments and sizes of a launch.
#pragma once

#include "flashsmith/backward_params.h"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith {

// When a warpgroup has the tensor cores to itself: never, from dV to dK of a block, or from dV of a
// block to dP of the next.
enum class PingPongScope : int8_t { none, gradients, gradients_and_scores };

// One point of the configuration space of the sm90 family's backward. Same fields, in the same
// order, as the Python class of this name. The fields are described in docs/knobs.md.
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

  constexpr auto operator<=>(const Sm90BackwardKernelConfig &) const = default;
};

// A kernel takes this as a `const __grid_constant__` parameter: bulk copies read the maps there.
//
// The maps are laid out as those of the forward kernels (arguments.cuh), with boxes of
// kStatisticsRows (Q, dO) or B_c rows (K, V).
struct Sm90BackwardKernelArgs {
  ptx::TensorMap Q_map, dO_map, K_map, V_map;
  ProblemArgs problem;
  GradientArgs gradient;
  // Rows from one entry of a tensor's batch to the next, for maps of five dimensions.
  int Q_batch_rows, dO_batch_rows, K_batch_rows, V_batch_rows;
  int heads_per_group;        // see head_groups.cuh; of k
  int query_heads_per_group;  // in kernels whose blocks keep queries
};

typedef void (*sm90_backward_kernel_fn)(const Sm90BackwardKernelArgs);

// The launches of one call, in their order. `sinks`: null where no variant has them; `conversion`:
// where the last block of keys converts.
struct Sm90BackwardKernels {
  sm90_backward_kernel_fn statistics, sinks, main, conversion;
};

constexpr int threads_per_block(const Sm90BackwardKernelConfig &cfg) {
  return (cfg.n_warpgroups + 1) * kWarpgroupSize;
}

// A box's row is one swizzle wide: 128 bytes, or 64 where d_head is not a multiple of that.
constexpr int map_columns(const Sm90BackwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? 64 : 32;
}

constexpr ptx::Swizzle map_swizzle(const Sm90BackwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? ptx::Swizzle::bytes_128 : ptx::Swizzle::bytes_64;
}

// Columns of dQ that a warpgroup computes at a time: its share, where that is whole boxes of K;
// else all of them, and the warpgroups take every n_warpgroups-th block.
constexpr int dQ_columns(const Sm90BackwardKernelConfig &cfg) {
  const int share = cfg.d_head / cfg.n_warpgroups;
  return cfg.d_head % cfg.n_warpgroups == 0 && share % map_columns(cfg) == 0 ? share : cfg.d_head;
}

// Of a block's dQ, which are added up each by itself.
constexpr int dQ_parts(const Sm90BackwardKernelConfig &cfg) { return cfg.d_head / dQ_columns(cfg); }

constexpr int kDSBuffers = 2;

// Entries that tell the warps of a block the tiles that it draws.
constexpr int kTileEntries = 2, kEntryBytes = 4;

constexpr int n_tile_entries(const Sm90BackwardKernelConfig &cfg) {
  return cfg.persistent || cfg.dQ_in_order ? kTileEntries : 0;
}

// Buffers into which sums of dQ come back: those from which they are added.
constexpr int n_sum_buffers(const Sm90BackwardKernelConfig &cfg) {
  return cfg.dQ_in_order ? cfg.n_warpgroups : 0;
}

// Pairs of barriers, full and empty: of each stage of Q and dO, of the buffers of dS and of dQ, on
// its way out and back, of K with V, and of entries.
constexpr int n_barriers(const Sm90BackwardKernelConfig &cfg) {
  return 2 * (cfg.Q_stages + cfg.dO_stages + kDSBuffers + cfg.n_warpgroups + n_sum_buffers(cfg) +
              1 + n_tile_entries(cfg));
}

// Tiles of K, V, Q and dO, dS of a block, FP32 dQ of each warpgroup, statistics, barriers and
// entries.
constexpr int shared_memory_bytes(const Sm90BackwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2, kSumBytes = 4, kBarrierBytes = 8;
  const int elements = (2 * cfg.B_c + (cfg.Q_stages + cfg.dO_stages) * cfg.B_r) * cfg.d_head +
                       kDSBuffers * cfg.B_r * cfg.B_c;
  const int sums = cfg.n_warpgroups * cfg.B_r * dQ_columns(cfg);
  const int statistics = cfg.Q_stages * 2 * kStatisticsRows;
  return elements * kElementBytes + (sums + statistics) * kSumBytes +
         n_barriers(cfg) * kBarrierBytes + n_tile_entries(cfg) * kEntryBytes;
}

}  // namespace flashsmith
