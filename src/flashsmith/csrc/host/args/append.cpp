#include "host/args/append.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

int64_t chunks_of(const TensorView &t) { return t.numel() / kAppendChunk; }

NewRows new_rows(const TensorView &rows, const TensorView &cache, const TensorView *scale) {
  return {.rows = rows.data_ptr(),
          .cache = cache.data_ptr(),
          .strides = strides_of(rows),
          .cache_strides = strides_of(cache),
          .scale = scale_of(scale),
          .row_scales = row_scale_args(scale)};
}

}  // namespace

AppendKernelArgs append_args(const AppendTensors &tensors, const AppendNumbers &numbers) {
  AppendKernelArgs args{};
  AppendArgs &append = args.append;
  append.K = new_rows(tensors.k(), tensors.k_cache(), tensors.k_scale());
  append.V = new_rows(tensors.v(), tensors.v_cache(), tensors.v_scale());
  append.n_new = static_cast<int>(tensors.k().size(kSequence));
  if (const TensorView *cos = tensors.rotary_cos()) {
    append.cos = cos->data_ptr();
    append.sin = tensors.rotary_sin()->data_ptr();
    append.rotary_rows = static_cast<int>(cos->size(0));
    append.rotary_dim = static_cast<int>(2 * cos->size(1));
    append.interleaved = numbers.interleaved;
    append.queries_in_a_row = numbers.queries_in_a_row;
  }
  DecodeProblem &problem = args.problem;
  if (const TensorView *q = tensors.q()) {
    append.Q = q->data_ptr();
    append.Q_turned = tensors.q_turned()->data_ptr();
    append.Q_strides = strides_of(*q);
    append.Q_turned_strides = strides_of(*tensors.q_turned());
    problem.seq_len_q = static_cast<int>(q->size(kSequence));
    problem.n_heads = static_cast<int>(q->size(kHead));
  }
  problem.batch = static_cast<int>(tensors.k().size(kBatch));
  problem.n_heads_kv = static_cast<int>(tensors.k().size(kHead));
  problem.d_qk = static_cast<int>(tensors.k().size(kDim));
  problem.d_v = static_cast<int>(tensors.v().size(kDim));
  problem.varlen.seqused_k = static_cast<const int32_t *>(tensors.cache_seqlens().data_ptr());
  problem.cache = cache_args(tensors.k_cache(), tensors.block_table(), tensors.cache_batch_idx());
  return args;
}

int64_t append_chunks(const AppendTensors &tensors) {
  return chunks_of(tensors.k()) + chunks_of(tensors.v()) +
         (tensors.q() ? chunks_of(*tensors.q()) : 0);
}

}  // namespace flashsmith
