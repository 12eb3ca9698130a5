// The sm90 decode kernels as host and device see them: configuration, kernel arguments and launch
// sizes.
#pragma once

#include "flashsmith/decode_params.h"
#include "flashsmith/sm90/arguments.cuh"

namespace flashsmith {

// One point of the configuration space. The fields, in this order, are those of the Python class of
// this name, and are described in docs/knobs.md.
struct Sm90DecodeKernelConfig {
  ScalarType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warpgroups;
  int n_stages;
  bool ping_pong;

  // K and V have the type of Q.
  static constexpr bool fp8_cache = false, per_token_scale = false;

  constexpr auto operator<=>(const Sm90DecodeKernelConfig &) const = default;
};

// The steps of Q K^T that take Q from registers. Where rows have 256 elements, products wait for
// shared memory; with shorter rows they do not (docs/log/decode.md).
constexpr int Q_register_steps(int d_head) { return d_head == 256 ? 4 : 0; }

// The max number of equal splits of a work tile that wait for each other, and combine a share each.
// A thread combines as many of a chunk as kSplitsOfThread; of more, two threads combine a half
// each.
constexpr int kMaxWaitingSplits = 32, kSplitsOfThread = 16;

// The threads of a warpgroup that combine splits: as many as have room for their sums in place of
// its rows of Q.
constexpr int combining_threads(const Sm90DecodeKernelConfig &cfg) {
  return cfg.d_head == 96 ? 64 : 128;
}

// Returns the configuration of the forward whose tiles these kernels use.
constexpr Sm90ForwardKernelConfig forward_config(const Sm90DecodeKernelConfig &cfg) {
  return {.dtype = cfg.dtype,
          .d_head = cfg.d_head,
          .B_r = cfg.B_r,
          .B_c = cfg.B_c,
          .n_warpgroups = cfg.n_warpgroups,
          .n_stages = cfg.n_stages,
          .Q_steps_in_registers = Q_register_steps(cfg.d_head),
          .overlap_softmax = true,
          .ping_pong = cfg.ping_pong,
          .persistent = true,
          .dynamic_queue = false,
          .overlap_tiles = false,
          .heads_per_group = 0,
          .cluster_size = 1,
          .lazy_rescale_log2 = 8,
          .stale_maximum = false,
          .fma_exponentials = 0,
          .tma_store = false,
          .fp8_scores = false,
          .fp8_values = false,
          .two_level = false,
          .ping_pong_until_exp = false,
          .skip_unseen = false};
}

// A kernel takes this as a `const __grid_constant__` parameter: bulk copies read the maps there.
// They are maps of varlen sequences (sm90/rows.cuh); a box has `box_rows` rows, which lie in one
// slot, or page, of the cache.
struct Sm90DecodeKernelArgs {
  ptx::TensorMap K_map, V_map;
  DecodeProblem problem;
  const void *__restrict__ Q;  // (batch, seq_len_q, n_heads, d_head)
  TensorStrides Q_strides;
  int K_batch_rows, V_batch_rows;  // rows between slots, or pages
  int box_rows;
};

typedef void (*sm90_decode_kernel_fn)(const Sm90DecodeKernelArgs);

struct Sm90DecodeKernels {
  sm90_decode_kernel_fn decode, waiting_decode, stream_k_decode, combine;
  append_kernel_fn append;
};

constexpr int threads_per_block(const Sm90DecodeKernelConfig &cfg) {
  return threads_per_block(forward_config(cfg));
}
constexpr int shared_memory_bytes(const Sm90DecodeKernelConfig &cfg) {
  return shared_memory_bytes(forward_config(cfg));
}

}  // namespace flashsmith
