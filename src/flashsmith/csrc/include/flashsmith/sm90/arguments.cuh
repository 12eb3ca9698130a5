// The forward kernels of the sm90 family as host and device see them: configuration (how),
// arguments and sizes of a launch.
#pragma once

#include "flashsmith/params.h"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith {

// One point of the configuration space of the sm90 family. Same fields, in the same order, as the
// Python class of this name; ordered, so that it can be the key of a map. The fields are described
// in docs/knobs.md.
struct Sm90ForwardKernelConfig {
  ScalarType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warpgroups;
  int n_stages;
  int Q_steps_in_registers;
  bool overlap_softmax;
  bool ping_pong;
  bool persistent;
  bool dynamic_queue;
  bool overlap_tiles;
  int heads_per_group;
  int cluster_size;
  int lazy_rescale_log2;
  bool stale_maximum;
  int fma_exponentials;
  bool tma_store;

  constexpr auto operator<=>(const Sm90ForwardKernelConfig &) const = default;
};

// A kernel takes this as a `const __grid_constant__` parameter: bulk copies read the maps there.
//
// The maps have four dimensions: d_head, sequence, head, batch; or five: see rows.cuh. Their boxes
// are `map_columns(cfg)` columns wide, swizzled over that width, and kQueryBoxRows (Q),
// `map_KV_rows(cfg)` (K, V) or kOutputBoxRows (O) rows high.
struct Sm90ForwardKernelArgs {
  ptx::TensorMap Q_map, K_map, V_map, O_map;
  ProblemArgs problem;
  // Rows from one entry of a tensor's batch to the next, for maps of five dimensions.
  int Q_batch_rows, K_batch_rows, V_batch_rows, O_batch_rows;
};

// Of maps of sequences with lengths of their own: a sequence ends at this row, and so many bytes
// less one row are the stride that takes it back. Their product is 2^64, which is no distance.
constexpr int kRaggedRows = 1 << 30;
constexpr uint64_t kRaggedShift = uint64_t{1} << 34;

typedef void (*sm90_forward_kernel_fn)(const Sm90ForwardKernelArgs);

constexpr int threads_per_block(const Sm90ForwardKernelConfig &cfg) {
  return (cfg.n_warpgroups + 1) * kWarpgroupSize;
}

// Columns of O that are in shared memory at a time, if it leaves by bulk copies.
constexpr int staged_columns(const Sm90ForwardKernelConfig &cfg) {
  constexpr int kMost = 128;
  if (!cfg.tma_store) return 0;
  return cfg.d_head < kMost ? cfg.d_head : kMost;
}

// Tiles of Q, K and V, columns of O, two entries of the tile queue and the barriers: full and empty
// for the rows of Q of each warpgroup and for each stage of K and V, full for the queue's entries.
constexpr int shared_memory_bytes(const Sm90ForwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2, kQueueBytes = 16, kBarrierBytes = 8;
  const int elements =
      cfg.B_r * (cfg.d_head + staged_columns(cfg)) + cfg.B_c * 2 * cfg.n_stages * cfg.d_head;
  const int n_barriers = 2 * cfg.n_warpgroups + 4 * cfg.n_stages + 2;
  return elements * kElementBytes + kQueueBytes + n_barriers * kBarrierBytes;
}

// A box's row is one swizzle wide: 128 bytes, or 64 where d_head is not a multiple of that.
constexpr int map_columns(const Sm90ForwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? 64 : 32;
}

constexpr ptx::Swizzle map_swizzle(const Sm90ForwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? ptx::Swizzle::bytes_128 : ptx::Swizzle::bytes_64;
}

constexpr int map_KV_rows(const Sm90ForwardKernelConfig &cfg) { return cfg.B_c / cfg.cluster_size; }

constexpr int kQueryBoxRows = 64;   // of a warpgroup
constexpr int kOutputBoxRows = 16;  // of a warp

// Blocks of rows of Q: whole clusters of them, so that the last may lie beyond the sequence.
constexpr int Q_blocks(const Sm90ForwardKernelConfig &cfg, int seq_len_q) {
  const int cluster_rows = cfg.B_r * cfg.cluster_size;
  return (seq_len_q + cluster_rows - 1) / cluster_rows * cfg.cluster_size;
}

// Thread blocks of a launch on a GPU with so many multiprocessors.
constexpr int grid_blocks(const Sm90ForwardKernelConfig &cfg, int n_tiles, int multiprocessors) {
  const int resident = multiprocessors / cfg.cluster_size * cfg.cluster_size;
  return cfg.persistent && resident < n_tiles ? resident : n_tiles;
}

}  // namespace flashsmith
