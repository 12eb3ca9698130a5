// The sm80 forward as host and device see it: configuration, kernel arguments and launch sizes.
#pragma once

#include "flashsmith/params.h"

namespace flashsmith {

// One point of the configuration space of the sm80 family. The fields, in this order, are those of
// the Python class of this name, and are described in docs/knobs.md. The struct is ordered, so that
// it can be the key of a map.
struct FlashForwardKernelConfig {
  ScalarType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warps;
  bool async_copy;
  bool eager_load_blocks;
  bool swizzled;
  // The Python class calls these three fields ..._K_tiles: both names are documented.
  int Q_mma_load_K_fragments;
  int K_mma_load_K_fragments;
  int V_mma_load_K_fragments;
  bool mma_double_buffer_loads;
  bool optimized_softmax;

  constexpr auto operator<=>(const FlashForwardKernelConfig &) const = default;
};

struct ForwardKernelArgs {
  const void *__restrict__ Q;  // (batch, seq_len_q, n_heads, d_head)
  const void *__restrict__ K;  // (batch, seq_len_k, n_heads_kv, d_head)
  const void *__restrict__ V;  // (batch, seq_len_k, n_heads_kv, d_head)
  TensorStrides Q_strides, K_strides, V_strides;
  ProblemArgs problem;
};

typedef void (*forward_kernel_fn)(const ForwardKernelArgs);

constexpr int threads_per_block(const FlashForwardKernelConfig &cfg) {
  return cfg.n_warps * kWarpSize;
}

// Shared memory holds one tile each of Q, K and V; O is stored through Q's tile.
constexpr int shared_memory_bytes(const FlashForwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2;
  return (cfg.B_r + 2 * cfg.B_c) * cfg.d_head * kElementBytes;
}

}  // namespace flashsmith
