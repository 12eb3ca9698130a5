#include "host/args/forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

// The farthest distance of a bound: it is beyond any key, and sums with it fit into int.
constexpr int64_t kFar = 1 << 30;

template <typename T>
T *data_of(const TensorView *t) {
  return t ? static_cast<T *>(t->data_ptr()) : nullptr;
}

int distance(int64_t window) {
  return static_cast<int>(window < 0 ? kFar : std::min(window, kFar));
}

int64_t broadcast_stride(const TensorView &t, int dimension) {
  return t.size(dimension) == 1 ? 0 : t.stride(dimension);
}

Band band_of(const ForwardTensors &tensors, const ForwardProblem &problem, const Numbers &numbers) {
  const bool from_ends = !numbers.top_left && !tensors.is_varlen();
  return {.diagonal = from_ends ? problem.seq_len_k - problem.seq_len_q : 0,
          .top_left = numbers.top_left,
          .ahead = distance(numbers.window_right),
          .behind = distance(numbers.window_left)};
}

ScoreArgs score_of(const ForwardTensors &tensors, const Numbers &numbers) {
  ScoreArgs args{};
  args.scale = static_cast<float>(numbers.softmax_scale);
  if (numbers.softcap > 0) {
    args.cap = static_cast<float>(numbers.softcap);
    args.inverse_cap = static_cast<float>(1 / numbers.softcap);
  }
  if (const TensorView *slopes = tensors.alibi_slopes()) {
    args.alibi_slopes = data_of<const float>(slopes);
    args.alibi_batch_stride = slopes->ndim() == 2 ? slopes->size(1) : 0;
  }
  if (const TensorView *bias = tensors.bias()) {
    args.bias = bias->data_ptr();
    args.bias_batch_stride = broadcast_stride(*bias, 0);
    args.bias_head_stride = broadcast_stride(*bias, 1);
    args.bias_row_stride = broadcast_stride(*bias, 2);
  }
  args.sinks = data_of<const float>(tensors.sinks());
  return args;
}

VarlenArgs varlen_of(const ForwardTensors &tensors) {
  return {.cu_seqlens_q = data_of<const int32_t>(tensors.cu_seqlens_q()),
          .cu_seqlens_k = data_of<const int32_t>(tensors.cu_seqlens_k()),
          .seqused_q = data_of<const int32_t>(tensors.seqused_q()),
          .seqused_k = data_of<const int32_t>(tensors.seqused_k()),
          .rows_q = static_cast<int>(tensors.q().size(kSequence)),
          .rows_k = static_cast<int>(rows_of_keys(tensors))};
}

ModBuffers mod_buffers_of(const ForwardTensors &tensors) {
  ModBuffers buffers{};
  for (int k = 0; k < kMaxModBuffers; k++) {
    const TensorView *t = tensors.mod_tensor(k);
    if (!t) break;
    buffers.buffer[k] = t->data_ptr();
    for (int d = 0; d < t->ndim(); d++) {
      buffers.size[k][d] = static_cast<int>(t->size(d));
      buffers.stride[k][d] = static_cast<int>(t->stride(d));
    }
  }
  return buffers;
}

KeyRanges key_ranges_of(const ForwardTensors &tensors, const Numbers &numbers) {
  const TensorView *t = tensors.key_ranges();
  if (!t) return {};
  return {.ends = data_of<const int32_t>(t),
          .batch_stride = broadcast_stride(*t, 0),
          .head_stride = broadcast_stride(*t, 1),
          .entries = static_cast<int>(t->size(2)),
          .rows_per_entry = static_cast<int>(numbers.rows_per_range)};
}

// Random numbers have 15 bits, and are compared as BF16 numbers where one instruction compares two,
// so no bound is beyond the finite BF16 numbers.
DropoutArgs dropout_of(const ForwardTensors &tensors, const Numbers &numbers) {
  constexpr int kNumbers = 1 << 15, kMax = 0x7f80;
  if (!tensors.rng_state()) return {};
  const int bound = std::min(static_cast<int>(std::nearbyint(numbers.dropout_p * kNumbers)), kMax);
  return {.rng_state = data_of<const int64_t>(tensors.rng_state()),
          .bounds = static_cast<uint32_t>(bound << 16 | bound),
          .scale = static_cast<float>(kNumbers) / static_cast<float>(kNumbers - bound)};
}

}  // namespace

int64_t rows_of_keys(const ForwardTensors &tensors) {
  const int64_t rows = tensors.k().size(kSequence);
  const TensorView *table = tensors.block_table();
  return table ? rows * table->size(1) : rows;
}

int64_t n_sequences(const ForwardTensors &tensors) {
  for (const TensorView *offsets : {tensors.cu_seqlens_q(), tensors.cu_seqlens_k()}) {
    if (offsets && offsets->ndim() == 1 && offsets->size(0) > 0) return offsets->size(0) - 1;
  }
  return tensors.q().size(kBatch);
}

ForwardProblem problem_of(const ForwardTensors &tensors, const Numbers &numbers) {
  const int64_t rows_q = tensors.q().size(kSequence);
  const int64_t rows_k = rows_of_keys(tensors);
  const bool bounded_q = tensors.is_varlen() && numbers.max_seqlen_q >= 0;
  const bool bounded_k = tensors.cu_seqlens_k() && numbers.max_seqlen_k >= 0;
  return {
      .batch = static_cast<int>(n_sequences(tensors)),
      .n_heads = static_cast<int>(tensors.q().size(kHead)),
      .n_heads_kv = static_cast<int>(tensors.k().size(kHead)),
      .seq_len_q = static_cast<int>(bounded_q ? std::min(numbers.max_seqlen_q, rows_q) : rows_q),
      .seq_len_k = static_cast<int>(bounded_k ? std::min(numbers.max_seqlen_k, rows_k) : rows_k),
      .total_q = tensors.cu_seqlens_q() ? static_cast<int>(rows_q) : 0};
}

ProblemArgs problem_args(const Variant &variant, const ForwardTensors &tensors,
                         const ForwardProblem &problem, const Numbers &numbers) {
  ProblemArgs args{};
  args.O = tensors.o().data_ptr();
  args.O_strides = strides_of(tensors.o());
  args.lse = data_of<float>(tensors.lse());
  if (uint32_t *workspace = data_of<uint32_t>(tensors.workspace())) {
    args.queue = workspace;
    args.tiles = workspace + kQueueWords;
  }
  args.batch = problem.batch;
  args.n_heads = problem.n_heads;
  args.n_heads_kv = problem.n_heads_kv;
  args.seq_len_q = problem.seq_len_q;
  args.seq_len_k = problem.seq_len_k;
  // The softmax is computed in base 2. Changed scores are scaled before it.
  const bool scaled = variant.softcap || variant.alibi || variant.bias || variant.score != 0;
  args.softmax_scale_log2 =
      static_cast<float>((scaled ? 1 : numbers.softmax_scale) * std::numbers::log2e);
  args.band = band_of(tensors, problem, numbers);
  args.d_qk = static_cast<int>(tensors.q().size(kDim));
  args.d_v = static_cast<int>(tensors.v().size(kDim));
  args.score = score_of(tensors, numbers);
  args.varlen = varlen_of(tensors);
  args.mod_buffers = mod_buffers_of(tensors);
  args.key_ranges = key_ranges_of(tensors, numbers);
  args.dropout = dropout_of(tensors, numbers);
  return args;
}

int64_t tile_table_bytes(int64_t n_entries) {
  constexpr int64_t kHeaderWords = 2, kEntryWords = 2;  // attention/tile_table.cuh
  return (kHeaderWords + n_entries * kEntryWords) * static_cast<int64_t>(sizeof(uint32_t));
}

TensorStrides strides_of(const TensorView &t) {
  return {t.stride(kBatch), t.stride(kSequence), t.stride(kHead)};
}

Fp8Scale scale_of(const TensorView *t) {
  if (!t) return {};
  const int64_t heads = t->size(t->ndim() - 1);
  return {.scale = data_of<const float>(t),
          .batch_stride = t->ndim() > 1 ? t->stride(0) : 0,
          .head_stride = heads > 1 ? t->stride(t->ndim() - 1) : 0};
}

}  // namespace flashsmith
