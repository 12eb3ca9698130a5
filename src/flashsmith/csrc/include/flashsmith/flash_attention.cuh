// What host and device share: the configuration of a kernel (how), its variant (what), its
// arguments. Framework-free and light: every generated translation unit includes it.
#pragma once

#include <compare>
#include <cstdint>

namespace flashsmith {

// Numbered as torch's c10::ScalarType, so that a demangled kernel name reads the same.
enum class ScalarType : int8_t { Half = 5, BFloat16 = 15 };

// One point of the configuration space of the sm80 family. Same fields, in the same order, as the
// Python class of this name; ordered, so that it can be the key of a map.
struct FlashForwardKernelConfig {
  ScalarType dtype;
  int d_head;  // 64 or 128
  int B_r;     // rows of Q a block works on
  int B_c;     // rows of K and V in shared memory at a time
  int n_warps;
  bool async_copy;         // global -> shared with cp.async, else through registers
  bool eager_load_blocks;  // load the next K and V block as early as their buffer is free
  bool swizzled;           // permute 16-byte chunks of a shared-memory row against bank conflicts
  // Fragments of the mma's K dimension that are loaded from shared memory at a time; 0: all.
  int Q_mma_load_K_fragments;
  int K_mma_load_K_fragments;
  int V_mma_load_K_fragments;
  bool mma_double_buffer_loads;  // load the next fragments before the current mma
  bool optimized_softmax;  // scale folded into the exponential, row sums reduced once at the end

  constexpr auto operator<=>(const FlashForwardKernelConfig &) const = default;
};

// What a kernel computes, apart from how. The default is plain full attention.
struct ForwardVariant {
  bool causal = false;  // bottom-right aligned

  constexpr auto operator<=>(const ForwardVariant &) const = default;
};

// Element strides of one (batch, seq_len, n_heads, d_head) tensor; d_head is contiguous.
struct TensorStrides {
  int64_t batch, seq, head;
};

struct ForwardKernelArgs {
  const void *__restrict__ Q;  // (batch, seq_len, n_heads, d_head)
  const void *__restrict__ K;  // (batch, seq_len, n_heads, d_head)
  const void *__restrict__ V;  // (batch, seq_len, n_heads, d_head)
  void *__restrict__ O;        // (batch, seq_len, n_heads, d_head)
  TensorStrides Q_strides, K_strides, V_strides, O_strides;
  int seq_len, n_heads;
  int n_Q_blocks, n_KV_blocks;  // seq_len / B_r, seq_len / B_c
  float softmax_scale_log2;     // softmax_scale * log2(e): the softmax is computed in base 2
};

typedef void (*forward_kernel_fn)(const ForwardKernelArgs);

constexpr int kWarpSize = 32;

constexpr int threads_per_block(const FlashForwardKernelConfig &cfg) {
  return cfg.n_warps * kWarpSize;
}

// One tile each of Q, K and V; O leaves through Q's.
constexpr int shared_memory_bytes(const FlashForwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2;
  return (cfg.B_r + 2 * cfg.B_c) * cfg.d_head * kElementBytes;
}

}  // namespace flashsmith
