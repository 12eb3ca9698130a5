// The types that host and device share in every family: a kernel's variant (what it computes), and
// the arguments of a call. This header needs no framework and is light, because every generated
// translation unit includes it.
#pragma once

#include <compare>
#include <cstdint>

namespace flashsmith {

// The numbers are those of torch's c10::ScalarType, so that a demangled kernel name reads the same.
enum class ScalarType : int8_t { Half = 5, BFloat16 = 15, Float8_e4m3fn = 24 };

// A variant is what a kernel computes, apart from how. The default is plain full attention. Bounds,
// caps and slopes are arguments of a call.
struct Variant {
  bool causal = false;   // queries see no keys ahead of a bound
  bool window = false;   // queries see no keys behind a bound
  bool softcap = false;  // scores pass through cap * tanh(score / cap)
  bool alibi = false;    // slope * distance is subtracted from scores
  bool bias = false;     // a tensor is added to scores
  bool sinks = false;    // each head has one more logit, whose value is zero
  bool varlen = false;   // batch entries have different lengths, on the device
  bool padded = false;   // rows of the tensors are shorter than d_head of the configuration
  int64_t score = 0;     // hash of the user's functions; 0: none
  bool dropout = false;  // random weights are dropped
  bool paged = false;    // K and V lie in pages, which a page table lists

  constexpr auto operator<=>(const Variant &) const = default;
};

// Element strides of one (batch, seq_len, n_heads, d_head) tensor; d_head is contiguous.
struct TensorStrides {
  int64_t batch, seq, head;
};

// The band that masks and ALiBi measure from. The diagonal of a query is the key with the same
// index, counted from the end (bottom-right aligned) or from the beginning (top-left).
struct Band {
  int diagonal;  // of query 0
  bool top_left;
  int ahead, behind;  // queries see keys from diagonal - behind to diagonal + ahead
};

// The changes of a score, in this order: scale, cap, minus slope * distance, plus bias.
struct ScoreArgs {
  float scale;
  float cap, inverse_cap;
  const float *__restrict__ alibi_slopes;  // (n_heads), batches alibi_batch_stride elements apart
  int64_t alibi_batch_stride;
  const void *__restrict__ bias;  // (batch, n_heads, seq_len_q, seq_len_k); stride 0 broadcasts
  int64_t bias_batch_stride, bias_head_stride, bias_row_stride;
  const float *__restrict__ sinks;  // (n_heads)
};

// Begin and length of varlen sequences; each pointer may be null. With cu_seqlens the sequences are
// packed one after the other in batch entry 0 of a tensor.
struct VarlenArgs {
  const int32_t *__restrict__ cu_seqlens_q, *__restrict__ cu_seqlens_k;  // (batch + 1) offsets
  const int32_t *__restrict__ seqused_q, *__restrict__ seqused_k;        // (batch) lengths
  int rows_q, rows_k;  // rows of one batch entry of the tensors
};

// The scale that FP8 values are multiplied with: one for all, one for each head of K and V, or one
// for each head and batch entry, as the strides say; null: 1.
struct Fp8Scale {
  const float *__restrict__ scale;
  int64_t batch_stride, head_stride;
};

constexpr int kMaxModBuffers = 8, kMaxModDimensions = 4;

// The tensors that a user's score_mod and mask_mod read. Sizes and strides are in elements.
struct ModBuffers {
  const void *buffer[kMaxModBuffers];
  int size[kMaxModBuffers][kMaxModDimensions];
  int stride[kMaxModBuffers][kMaxModDimensions];
};

// The range of keys that the user's mask may show to queries: begin and end for every
// rows_per_entry rows of each head. Between them the mask itself decides.
struct KeyRanges {
  const int32_t *__restrict__ ends;  // (batch, n_heads, entries, 2); null: all keys
  int64_t batch_stride, head_stride;
  int entries, rows_per_entry;
};

// The weights to drop (attention/dropout.cuh).
struct DropoutArgs {
  const int64_t *__restrict__ rng_state;  // seed and offset, on the device
  uint32_t bounds;  // in each half: 15-bit random numbers below it drop their weights
  float scale;      // factor of the weights that are kept
};

// The arguments of a call that the kernels of every family take.
struct ProblemArgs {
  void *__restrict__ O;  // (batch, seq_len_q, n_heads, d_head)
  TensorStrides O_strides;
  float *__restrict__ lse;  // (batch, n_heads, seq_len_q), or null; natural logarithm
  uint32_t *queue;          // a counter in the workspace, or null
  int batch, n_heads, n_heads_kv;
  int seq_len_q, seq_len_k;
  // The number of blocks of seq_len_q; for varlen sequences, the room of their tile table in
  // entries.
  int n_Q_blocks;
  float softmax_scale_log2;  // factor of scores for a softmax in base 2
  Band band;
  int d_qk, d_v;  // elements of a row of Q and K, and of V and O
  ScoreArgs score;
  VarlenArgs varlen;
  uint32_t *tiles;  // varlen: the tile table, in the workspace
  ModBuffers mod_buffers;
  KeyRanges key_ranges;
  DropoutArgs dropout;
};

constexpr int kWarpSize = 32, kWarpgroupSize = 128;

}  // namespace flashsmith
