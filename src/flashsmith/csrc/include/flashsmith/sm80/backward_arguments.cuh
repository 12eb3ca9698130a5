// The sm80 backward as host and device see it: configuration, kernel arguments and launch sizes.
#pragma once

#include "flashsmith/backward_params.h"

namespace flashsmith {

// One point of the configuration space. The fields, in this order, are those of the Python class of
// this name, and are described in docs/knobs.md.
struct FlashBackwardKernelConfig {
  ScalarType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warps;
  int n_stages;
  bool split_dK_dV;

  constexpr auto operator<=>(const FlashBackwardKernelConfig &) const = default;
};

struct BackwardKernelArgs {
  const void *__restrict__ Q;  // (batch, seq_len_q, n_heads, d_head)
  const void *__restrict__ K;  // (batch, seq_len_k, n_heads_kv, d_head)
  const void *__restrict__ V;  // (batch, seq_len_k, n_heads_kv, d_v)
  TensorStrides Q_strides, K_strides, V_strides;
  ProblemArgs problem;
  GradientArgs gradient;
};

typedef void (*backward_kernel_fn)(const BackwardKernelArgs);

// The kernels of one call: dK and dV come from one kernel, or from one each. Null: no such kernel.
struct FlashBackwardKernels {
  backward_kernel_fn statistics, sinks, dQ, dK_dV, dK, dV;
};

constexpr int threads_per_block(const FlashBackwardKernelConfig &cfg) {
  return cfg.n_warps * kWarpSize;
}

// Shared memory holds two tiles of the rows that a block keeps, and in every stage two tiles of
// visited rows with the block of statistics that visited queries lie in.
constexpr int shared_memory_bytes(const FlashBackwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2, kStatisticsBytes = 8;  // of an element, and of a row
  return 2 * (cfg.B_r + cfg.n_stages * cfg.B_c) * cfg.d_head * kElementBytes +
         cfg.n_stages * kStatisticsRows * kStatisticsBytes;
}

}  // namespace flashsmith
