// What host and device share, whichever the family: a kernel's variant (what it computes), and what
// it is told of a call. Framework-free and light: every generated translation unit includes it.
#pragma once

#include <compare>
#include <cstdint>

namespace flashsmith {

// Numbered as torch's c10::ScalarType, so that a demangled kernel name reads the same.
enum class ScalarType : int8_t { Half = 5, BFloat16 = 15, Float8_e4m3fn = 24 };

// What a kernel computes, apart from how. The default is plain full attention. How far bounds lie,
// caps, slopes and the like are arguments of a call.
struct Variant {
  bool causal = false;   // queries see no keys ahead of a bound
  bool window = false;   // nor behind one
  bool softcap = false;  // scores pass through cap * tanh(score / cap)
  bool alibi = false;    // and lose slope * distance
  bool bias = false;     // a tensor is added to them
  bool sinks = false;    // each head has one more logit, whose value is zero
  bool varlen = false;   // the entries of the batch have lengths of their own, on the device
  bool padded = false;   // rows of the tensors are shorter than the configuration's d_head
  int64_t score = 0;     // the hash of the user's functions; 0: none
  bool dropout = false;  // some weights are dropped, at random
  bool paged = false;    // K and V lie in pages, which a table lists

  constexpr auto operator<=>(const Variant &) const = default;
};

// Element strides of one (batch, seq_len, n_heads, d_head) tensor; d_head is contiguous.
struct TensorStrides {
  int64_t batch, seq, head;
};

// Where masks and ALiBi measure from. Of a query, the diagonal is the key beside it: that of the
// same index from the end (bottom-right aligned), or from the beginning (top-left).
struct Band {
  int diagonal;  // that of query 0
  bool top_left;
  int ahead, behind;  // queries see keys from diagonal - behind to diagonal + ahead
};

// What is done to a score, in this order: scaled, capped, less slope * distance, plus bias.
struct ScoreArgs {
  float scale;
  float cap, inverse_cap;
  const float *__restrict__ alibi_slopes;  // of heads, alibi_batch_stride elements apart by batch
  int64_t alibi_batch_stride;
  const void *__restrict__ bias;  // (batch, n_heads, seq_len_q, seq_len_k), some of them repeated
  int64_t bias_batch_stride, bias_head_stride, bias_row_stride;
  const float *__restrict__ sinks;  // of heads
};

// Where sequences of their own lengths begin and end; each may be null. With cu_seqlens all rows of
// a tensor are one after the other, in entry 0 of its batch.
struct VarlenArgs {
  const int32_t *__restrict__ cu_seqlens_q, *__restrict__ cu_seqlens_k;  // batch + 1 offsets
  const int32_t *__restrict__ seqused_q, *__restrict__ seqused_k;        // batch lengths
  int rows_q, rows_k;  // of one entry of the tensors' batch
};

// What numbers of 8 bits are to be multiplied with: one for all, for each head of K and V, or for
// each of them in each entry of the batch, as strides say; null: 1.
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

// Which keys the user's mask may show to queries: from and before which key, for every so many rows
// of each head. What lies between is for the mask itself to say.
struct KeyRanges {
  const int32_t *__restrict__ ends;  // (batch, n_heads, entries, 2); null: all keys
  int64_t batch_stride, head_stride;
  int entries, rows_per_entry;
};

// Which weights are dropped (attention/dropout.cuh).
struct DropoutArgs {
  const int64_t *__restrict__ rng_state;  // a seed and an offset, on the device
  uint32_t bounds;  // in either half: a random number below it, of 2^15, drops its weight
  float scale;      // of the weights that are kept
};

// What the kernels of every family are told of a call.
struct ProblemArgs {
  void *__restrict__ O;  // (batch, seq_len_q, n_heads, d_head)
  TensorStrides O_strides;
  float *__restrict__ lse;  // (batch, n_heads, seq_len_q), or null; natural logarithm
  uint32_t *queue;          // the workspace, or null
  int batch, n_heads, n_heads_kv;
  int seq_len_q, seq_len_k;
  // As the family's configuration divides seq_len_q; of sequences of their own lengths, how many
  // entries their table of tiles has room for.
  int n_Q_blocks;
  float softmax_scale_log2;  // what scores are multiplied with for a softmax in base 2
  Band band;
  int d_qk, d_v;  // elements of a row of Q and K, and of V and O
  ScoreArgs score;
  VarlenArgs varlen;
  uint32_t *tiles;  // of sequences with lengths of their own: a table in the workspace
  ModBuffers mod_buffers;
  KeyRanges key_ranges;
  DropoutArgs dropout;
};

constexpr int kWarpSize = 32, kWarpgroupSize = 128;

}  // namespace flashsmith
