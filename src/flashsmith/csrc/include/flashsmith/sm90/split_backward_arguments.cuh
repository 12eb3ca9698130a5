// The split backward of the sm90 family as host and device see it: configuration and launch sizes.
// backward_arguments.cuh has its kernel arguments; the boxes of their maps have kStatisticsRows
// rows.
#pragma once

#include "flashsmith/sm90/backward_arguments.cuh"

namespace flashsmith {

// One point of the configuration space of the sm90 family's split backward, where dQ has a separate
// kernel. The fields, in this order, are those of the Python class of this name, and are described
// in docs/knobs.md.
struct Sm90SplitBackwardKernelConfig {
  ScalarType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warpgroups;
  int K_stages;
  int V_stages;
  int Q_stages;
  int dO_stages;
  int cluster_size;

  constexpr auto operator<=>(const Sm90SplitBackwardKernelConfig &) const = default;
};

// The kernels of one call, in the order of their launches. `sinks` is null if the variant has none.
struct Sm90SplitBackwardKernels {
  sm90_backward_kernel_fn statistics, sinks, dQ, dK_dV;
};

constexpr int threads_per_block(const Sm90SplitBackwardKernelConfig &cfg) {
  return (cfg.n_warpgroups + 1) * kWarpgroupSize;
}

// map_columns returns the width of a box, and map_swizzle its swizzle: 128 bytes, or 64 if a row of
// d_head is not a multiple of 128.
constexpr int map_columns(const Sm90SplitBackwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? 64 : 32;
}

constexpr ptx::Swizzle map_swizzle(const Sm90SplitBackwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? ptx::Swizzle::bytes_128 : ptx::Swizzle::bytes_64;
}

// Returns the bytes of a tile of Q, dO, K or V, each of kStatisticsRows rows.
constexpr int tile_bytes(const Sm90SplitBackwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2;
  return kStatisticsRows * cfg.d_head * kElementBytes;
}

// The kernel of dQ has a tile of Q and one of dO for each warpgroup, with one barrier; stages of K
// and V have pairs of barriers.
constexpr int dQ_shared_memory_bytes(const Sm90SplitBackwardKernelConfig &cfg) {
  constexpr int kBarrierBytes = 8;
  const int stages = cfg.K_stages + cfg.V_stages;
  return (2 * cfg.n_warpgroups + stages) * tile_bytes(cfg) +
         (cfg.n_warpgroups + 2 * stages) * kBarrierBytes;
}

constexpr int kPBuffers = 2;

// The kernel of dK and dV has a tile of K and one of V, with one barrier; stages of Q, with
// statistics, and of dO, and buffers of P have pairs of barriers.
constexpr int dK_dV_shared_memory_bytes(const Sm90SplitBackwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2, kBarrierBytes = 8;
  const int stages = cfg.Q_stages + cfg.dO_stages;
  const int statistics = cfg.Q_stages * 2 * kStatisticsRows * static_cast<int>(sizeof(float));
  return (2 + stages) * tile_bytes(cfg) + kPBuffers * cfg.B_r * cfg.B_c * kElementBytes +
         statistics + (1 + 2 * (stages + kPBuffers)) * kBarrierBytes;
}

}  // namespace flashsmith
