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
  // Fragments of the mma's K dimension that are loaded from shared memory at a time; 0: all. The
  // Python class calls these three fields ..._K_tiles: both names are the documented ones.
  int Q_mma_load_K_fragments;
  int K_mma_load_K_fragments;
  int V_mma_load_K_fragments;
  bool mma_double_buffer_loads;  // load the next fragments before the current mma
  bool optimized_softmax;  // scale folded into the exponential, row sums reduced once at the end

  constexpr auto operator<=>(const FlashForwardKernelConfig &) const = default;
};

// One point of the configuration space of the sm90 family. Same fields, in the same order, as the
// Python class of this name; ordered, so that it can be the key of a map.
struct Sm90ForwardKernelConfig {
  ScalarType dtype;
  int d_head;                // 64, 96, 128, 192 or 256
  int B_r;                   // rows of Q a block works on at a time, 64 for each consumer warpgroup
  int B_c;                   // rows of K and V that a stage holds
  int n_warpgroups;          // consumers; one more warpgroup loads
  int n_stages;              // blocks of K, and of V, in shared memory
  int Q_steps_in_registers;  // of the d_head / 16 of Q K^T; the others read shared memory
  bool overlap_softmax;      // Q K^T of the next block runs while the softmax of this one does
  bool ping_pong;            // consumer warpgroups take turns with the tensor cores
  bool persistent;           // one block a multiprocessor works on tile after tile
  bool dynamic_queue;        // persistent: the next tile comes from a queue in global memory
  bool overlap_tiles;     // persistent: the next tile's first Q K^T runs with this one's last P V
  int heads_per_group;    // tiles go longest first inside groups of so many heads; 0: head by head
  int cluster_size;       // blocks that load K and V together, by multicast; 1: none
  int lazy_rescale_log2;  // O is rescaled only if a maximum has grown by more than 2^this; 0:
                          // always
  bool stale_maximum;     // look for a new maximum only where a score exceeds the lazy bound
  int fma_exponentials;   // of 16 exponentials, how many are polynomials on the FMA units
  bool tma_store;         // O leaves through shared memory by a bulk copy, else from registers

  constexpr auto operator<=>(const Sm90ForwardKernelConfig &) const = default;
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

constexpr int kWarpSize = 32, kWarpgroupSize = 128;

constexpr int threads_per_block(const FlashForwardKernelConfig &cfg) {
  return cfg.n_warps * kWarpSize;
}

// One tile each of Q, K and V; O leaves through Q's.
constexpr int shared_memory_bytes(const FlashForwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2;
  return (cfg.B_r + 2 * cfg.B_c) * cfg.d_head * kElementBytes;
}

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

// Global memory, zeroed, which a launch leaves zeroed: the queue's next tile, and how many blocks
// have found it empty.
constexpr int workspace_bytes(const Sm90ForwardKernelConfig &cfg) {
  return cfg.dynamic_queue ? 8 : 0;
}
constexpr int workspace_bytes(const FlashForwardKernelConfig &) { return 0; }

}  // namespace flashsmith
