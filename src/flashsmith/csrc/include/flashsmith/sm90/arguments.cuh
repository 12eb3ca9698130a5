// The arguments of a forward kernel of the sm90 family.
#pragma once

#include "flashsmith/flash_attention.cuh"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith {

// A kernel takes this as a `const __grid_constant__` parameter: bulk copies read the maps there.
//
// The maps have four dimensions: d_head, sequence, head, batch. Their boxes are `map_columns(cfg)`
// columns wide, swizzled over that width, and kQueryBoxRows (Q), `map_KV_rows(cfg)` (K, V) or
// kOutputBoxRows (O) rows high.
struct Sm90ForwardKernelArgs {
  ptx::TensorMap Q_map, K_map, V_map, O_map;
  void *__restrict__ O;  // (batch, seq_len_q, n_heads, d_head)
  TensorStrides O_strides;
  float *__restrict__ lse;  // (batch, n_heads, seq_len_q), or null; natural logarithm
  uint32_t *queue;          // workspace_bytes, or null
  int batch, n_heads, n_heads_kv;
  int seq_len_q, seq_len_k;
  int n_Q_blocks;            // Q_blocks(cfg, seq_len_q)
  float softmax_scale_log2;  // softmax_scale * log2(e): the softmax is computed in base 2
};

typedef void (*sm90_forward_kernel_fn)(const Sm90ForwardKernelArgs);

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
