// The arguments of a forward kernel of the sm90 family.
#pragma once

#include "flashsmith/flash_attention.cuh"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith {

// A kernel takes this as a `const __grid_constant__` parameter: bulk copies read the maps there.
//
// The maps have four dimensions: d_head, sequence, head, batch. Their boxes are `map_columns(cfg)`
// columns wide, swizzled over that width, and B_r (Q), B_c (K, V) or kOutputBoxRows (O) rows high.
struct HopperForwardKernelArgs {
  ptx::TensorMap Q_map, K_map, V_map, O_map;
  void *__restrict__ O;  // (batch, seq_len_q, n_heads, d_head)
  TensorStrides O_strides;
  float *__restrict__ lse;  // (batch, n_heads, seq_len_q), or null; natural logarithm
  uint32_t *queue;          // workspace_bytes, or null
  int batch, n_heads, n_heads_kv;
  int seq_len_q, seq_len_k;
  int n_Q_blocks;            // seq_len_q / B_r, rounded up
  float softmax_scale_log2;  // softmax_scale * log2(e): the softmax is computed in base 2
};

typedef void (*hopper_forward_kernel_fn)(const HopperForwardKernelArgs);

// A box's row is one swizzle wide: 128 bytes, or 64 where d_head is not a multiple of that.
constexpr int map_columns(const HopperForwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? 64 : 32;
}

constexpr ptx::Swizzle map_swizzle(const HopperForwardKernelConfig &cfg) {
  return cfg.d_head % 64 == 0 ? ptx::Swizzle::bytes_128 : ptx::Swizzle::bytes_64;
}

constexpr int kOutputBoxRows = 16;  // of a warp

// Blocks of a launch on a GPU with so many multiprocessors.
constexpr int grid_blocks(const HopperForwardKernelConfig &cfg, int n_tiles, int multiprocessors) {
  return cfg.persistent && multiprocessors < n_tiles ? multiprocessors : n_tiles;
}

}  // namespace flashsmith
