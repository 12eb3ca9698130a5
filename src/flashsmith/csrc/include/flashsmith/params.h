// What host and device share, whichever the family: a kernel's variant (what it computes), and what
// it is told of a call. Framework-free and light: every generated translation unit includes it.
#pragma once

#include <compare>
#include <cstdint>

namespace flashsmith {

// Numbered as torch's c10::ScalarType, so that a demangled kernel name reads the same.
enum class ScalarType : int8_t { Half = 5, BFloat16 = 15 };

// What a kernel computes, apart from how. The default is plain full attention.
struct Variant {
  bool causal = false;  // bottom-right aligned

  constexpr auto operator<=>(const Variant &) const = default;
};

// Element strides of one (batch, seq_len, n_heads, d_head) tensor; d_head is contiguous.
struct TensorStrides {
  int64_t batch, seq, head;
};

// What the kernels of every family are told of a call.
struct ProblemArgs {
  void *__restrict__ O;  // (batch, seq_len_q, n_heads, d_head)
  TensorStrides O_strides;
  float *__restrict__ lse;  // (batch, n_heads, seq_len_q), or null; natural logarithm
  uint32_t *queue;          // the workspace, or null
  int batch, n_heads, n_heads_kv;
  int seq_len_q, seq_len_k;
  int n_Q_blocks;            // as the family's configuration divides seq_len_q
  float softmax_scale_log2;  // softmax_scale * log2(e): the softmax is computed in base 2
};

constexpr int kWarpSize = 32, kWarpgroupSize = 128;

}  // namespace flashsmith
