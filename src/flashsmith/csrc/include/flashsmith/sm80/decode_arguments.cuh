// The sm80 decode kernels as host and device see them: configuration, kernel arguments and launch
// sizes.
#pragma once

#include "flashsmith/decode_params.h"

namespace flashsmith {

// One point of the configuration space. The fields, in this order, are those of the Python class of
// this name, and are described in docs/knobs.md.
struct FlashDecodeKernelConfig {
  ScalarType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warps;
  int n_stages;
  int blocks_per_SM;
  bool fp8_cache;
  bool per_token_scale;

  constexpr auto operator<=>(const FlashDecodeKernelConfig &) const = default;
};

struct DecodeKernelArgs {
  const void *__restrict__ Q;  // (batch, seq_len_q, n_heads, d_head)
  const void *__restrict__ K;  // (slots, rows, n_heads_kv, d_head)
  const void *__restrict__ V;  // (slots, rows, n_heads_kv, d_v)
  TensorStrides Q_strides, K_strides, V_strides;
  DecodeProblem problem;
  Fp8Scale K_scale, V_scale;  // of an FP8 cache
  RowScales K_row_scales, V_row_scales;
};

typedef void (*decode_kernel_fn)(const DecodeKernelArgs);

struct FlashDecodeKernels {
  decode_kernel_fn decode, stream_k_decode, combine;
  append_kernel_fn append;
};

constexpr int threads_per_block(const FlashDecodeKernelConfig &cfg) {
  return cfg.n_warps * kWarpSize;
}

// A warp works on the rows of one mma. row_warps warps, a team, visit the same keys, each for other
// rows; the teams of a block visit different keys.
constexpr int kRowsOfWarp = 16;
constexpr int row_warps(const FlashDecodeKernelConfig &cfg) { return cfg.B_r / kRowsOfWarp; }
constexpr int n_teams(const FlashDecodeKernelConfig &cfg) { return cfg.n_warps / row_warps(cfg); }

constexpr int cache_element_bytes(const FlashDecodeKernelConfig &cfg) {
  return cfg.fp8_cache ? 1 : 2;
}

// Longer rows of Q are read from shared memory, because there are no registers for them.
constexpr int kLongestDecodeQInRegisters = 128;

// Returns the number of partial results that a combining thread has in flight, to hide the latency
// of memory: as many as registers allow.
constexpr int splits_at_once(const FlashDecodeKernelConfig &cfg) {
  if (cfg.d_head > kLongestDecodeQInRegisters || cfg.per_token_scale) return 2;
  return row_warps(cfg) > 1 || cfg.fp8_cache ? 3 : 4;
}

// Each team has a ring of stages, each of B_c rows of K and of V. The block has Q, and one word.
// Each member is aligned, and exists even if it is not used.
constexpr int shared_memory_bytes(const FlashDecodeKernelConfig &cfg) {
  constexpr int kElementBytes = 2, kAlignment = 128;
  const int Q =
      cfg.d_head > kLongestDecodeQInRegisters ? cfg.B_r * cfg.d_head * kElementBytes : kAlignment;
  const int scale_bytes = cfg.per_token_scale ? 2 * kWarpSize * static_cast<int>(sizeof(float)) : 0;
  const int stage = 2 * cfg.B_c * cfg.d_head * cache_element_bytes(cfg) + scale_bytes;
  return n_teams(cfg) * cfg.n_stages * stage + Q + kAlignment;
}

}  // namespace flashsmith
