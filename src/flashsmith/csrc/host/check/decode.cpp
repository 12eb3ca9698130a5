#include "host/check/decode.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxSplits = 1024;

void check_lengths_of(const DecodeTensors &tensors) {
  const ForwardTensors forward = tensors.forward();
  if (forward.cu_seqlens_q() || forward.cu_seqlens_k() || forward.seqused_q()) {
    TVM_FFI_THROW(ValueError)
        << "cu_seqlens or seqused_q were passed; decode needs the same number "
           "of queries for every request";
  }
  const TensorView *used = forward.seqused_k();
  const int64_t batch = tensors.q().size(kBatch);
  if (used && !(used->ndim() == 1 && used->size(0) == batch && is_contiguous(*used))) {
    TVM_FFI_THROW(ValueError) << tensors.lengths_name() << " has shape " << shape_of(*used)
                              << "; it must be contiguous and of shape (batch) = (" << batch << ")";
  }
}

// Checks that rows of an FP8 cache are whole chunks of 16 bytes.
void check_row_chunks(const DecodeKernel &kernel, const DecodeTensors &tensors) {
  constexpr int kChunkBytes = 16;
  if (kernel.cache != ScalarType::Float8_e4m3fn) return;
  const int64_t d_head = tensors.q().size(kDim), d_v = tensors.v_cache().size(kDim);
  for (const auto &[name, dim, size] :
       {std::tuple{"q", " has d_head ", d_head}, {tensors.v_name(), " has d_v ", d_v}}) {
    if (size % kChunkBytes == 0) continue;
    TVM_FFI_THROW(ValueError) << name << dim << size
                              << "; supported with a cache of float8_e4m3fn are multiples of "
                              << kChunkBytes << " up to 256";
  }
}

// Checks that KV steps, work tiles and slots can be counted as int.
void check_counts(const DecodeKernel &kernel, const DecodeTensors &tensors,
                  const DecodeNumbers &own) {
  const TensorView &k = tensors.k_cache(), *table = tensors.block_table();
  const int64_t pages = table ? table->size(1) : 1, rows = k.size(kSequence);
  if (k.size(kBatch) > kMaxInt || rows > kMaxInt / 2 / std::max<int64_t>(pages, 1)) {
    TVM_FFI_THROW(ValueError) << tensors.k_name() << " has shape " << shape_of(k)
                              << "; a request may have at most 2^30 rows";
  }
  if (own.splits < 0 || own.splits > kMaxSplits) {
    TVM_FFI_THROW(ValueError) << "splits is " << own.splits << "; expected 0 to " << kMaxSplits;
  }
  if (own.n_new < 0 || own.n_new > kMaxInt / 2) {
    TVM_FFI_THROW(ValueError) << "n_new is " << own.n_new << "; expected 0 to 2^30";
  }
  const ForwardProblem problem = problem_of(tensors);
  if (problem.is_empty()) return;
  constexpr int kMinStepKeys = 16;
  const int64_t all_splits = std::max<int64_t>(problem.seq_len_k / kMinStepKeys + 2, kMaxSplits);
  if (decode_tiles(problem, kernel.tiles.B_r) > kMaxInt / all_splits) {
    TVM_FFI_THROW(ValueError) << "q has shape " << shape_of(tensors.q())
                              << ", which is too many rows for a cache of " << problem.seq_len_k
                              << " rows a request: split the call";
  }
}

}  // namespace

void check_scale(const DecodeKernel &kernel, const char *name, const TensorView *t, int64_t batch,
                 const TensorView &cache) {
  const bool is_of_tokens = t && t->ndim() == kTokenScaleRank;
  if (!is_of_tokens || kernel.cache != ScalarType::Float8_e4m3fn) {
    return check_fp8_scale(name, t, "the cache", kernel.cache, batch, cache.size(kHead));
  }
  const int64_t entries = cache.size(kBatch), rows = cache.size(kSequence);
  const int64_t heads = cache.size(kHead);
  if (t->size(0) != entries || t->size(1) != rows || t->size(2) != heads ||
      !is_aligned(*t, sizeof(float))) {
    TVM_FFI_THROW(ValueError) << name << " has shape " << shape_of(*t)
                              << "; with a scale for each row it must be of shape (entries, rows, "
                                 "n_heads_kv) = ("
                              << entries << ", " << rows << ", " << heads << ")";
  }
  if (!kernel.per_token_scale) {
    TVM_FFI_THROW(ValueError)
        << name << " has shape " << shape_of(*t)
        << ", a scale for each row, but the configuration has no such scales; "
           "pass one with per_token_scale";
  }
}

void check_entries(const char *name, const TensorView &k_cache, const TensorView *table,
                   const TensorView *idx, int64_t batch) {
  const int64_t entries = k_cache.size(kBatch);
  if (table && idx) {
    TVM_FFI_THROW(ValueError) << "cache_batch_idx was passed with block_table, which says where a "
                                 "request's rows are; pass one of them";
  }
  if (table && (table->ndim() != 2 || table->size(0) != batch ||
                (table->size(1) > 1 && table->stride(1) != 1))) {
    TVM_FFI_THROW(ValueError) << "block_table has shape " << shape_of(*table)
                              << "; it must have contiguous rows and be of shape (batch, pages) = ("
                              << batch << ", any)";
  }
  if (!table && !idx && entries != batch) {
    TVM_FFI_THROW(ValueError) << name << " has " << entries << " entries, but q has batch size "
                              << batch << "; they need the same, or block_table or "
                              << "cache_batch_idx";
  }
}

ForwardProblem check_decode(const DecodeKernel &kernel, const DecodeTensors &tensors,
                            const Numbers &numbers, const DecodeNumbers &own) {
  if (numbers.top_left) {
    TVM_FFI_THROW(ValueError) << "top_left is true; decode counts keys from the end of a request";
  }
  const Tensors all = tensors.all();
  const ForwardTensors forward = tensors.forward();
  all.for_each([&](const Argument &argument, const TensorView &t) {
    if (!has_rows(argument)) return;
    check_dtype(all, argument, t, kernel.type_of(argument.element));
    check_rank(argument, t);
    check_device(all, argument, t);
  });
  check_semantics(kernel, forward);
  for (size_t i = 1; i < all.size(); i++) {
    if (has_rows(all.table[i])) check_shape(all, i, false);
  }
  check_d_head(kernel, tensors.q(), tensors.v_cache());
  check_row_chunks(kernel, tensors);
  check_heads(tensors.q(), tensors.k_cache());
  all.for_each([&](const Argument &argument, const TensorView &t) {
    if (has_rows(argument) || argument.use == Use::scratch) return;
    check_dtype(all, argument, t, kernel.tiles.dtype);
    check_device(all, argument, t);
    if (argument.rank() > 0) check_contiguous_argument(all, argument, t);
  });
  check_slopes(forward);
  check_lengths_of(tensors);
  check_entries(tensors.k_name(), tensors.k_cache(), tensors.block_table(),
                tensors.cache_batch_idx(), tensors.q().size(kBatch));
  check_counts(kernel, tensors, own);
  const ForwardProblem problem = problem_of(tensors);
  check_scale(kernel, "k_scale", tensors.k_scale(), problem.batch, tensors.k_cache());
  check_scale(kernel, "v_scale", tensors.v_scale(), problem.batch, tensors.v_cache());
  return problem;
}

void check_counters(const DecodeTensors &tensors, const Plan &plan) {
  if (plan.counter_bytes == 0) return;
  const TensorView *t = tensors.counters();
  const int64_t bytes = t ? t->numel() * t->dtype().bits / 8 : 0;
  if (bytes < plan.counter_bytes || !is_contiguous(*t) || !is_aligned(*t, sizeof(uint32_t))) {
    TVM_FFI_THROW(ValueError) << "counters has " << bytes << " bytes; it must be at least "
                              << plan.counter_bytes << " of zeros, contiguous and 4-byte aligned";
  }
  check_device(tensors.all(), kDecodeOwn.back(), *t);
}

}  // namespace flashsmith
