// Clears the gradients of rows that no sequence has: those behind each sequence, and before the
// first. Nothing depends on these rows. The caller requests the zeros where the library allocated
// the gradients, because filling whole tensors beforehand would write all memory twice.
#pragma once

#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/backward_params.h"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith {

// A range of rows of one batch entry of a tensor.
struct RowRange {
  int batch, begin, end;
};

// Returns the rows behind a sequence. They end where the next sequence begins if sequences are
// packed, else at the end of the batch entry.
FLASHSMITH_DEVICE RowRange unused_after(const RowOffset &first, int n_used,
                                        const int32_t *cu_seqlens, int n_rows, int batch,
                                        int n_sequences) {
  int end = n_rows;
  if (cu_seqlens != nullptr && batch + 1 < n_sequences) {
    const int next = ptx::thread_load_global(cu_seqlens + batch + 1);
    end = next < n_rows ? next : n_rows;
  }
  return {first.batch, first.row + n_used, end};
}

// Writes zeros into the rows of one head; the blocks of a grid's x share the rows.
template <typename value_t, int kThreads>
FLASHSMITH_DEVICE void clear_rows(void *tensor, const TensorStrides &strides, const RowRange &rows,
                                  int head, int n_columns) {
  constexpr int kLanes = 8, kChunkElements = 8, kRowsAtOnce = kThreads / kLanes;
  const int lane = ptx::thread_index() % kLanes;
  const int own = ptx::block_index_x() * kRowsAtOnce + ptx::thread_index() / kLanes;
  auto *first = static_cast<value_t *>(tensor) + rows.batch * strides.batch + head * strides.head;
  for (int row = rows.begin + own; row < rows.end; row += ptx::grid_size_x() * kRowsAtOnce) {
    for (int column = lane * kChunkElements; column < n_columns;
         column += kLanes * kChunkElements) {
      ptx::thread_store_global_16(first + row * strides.seq + column, ptx::Chunk{});
    }
  }
}

// Clears the rows that belong to the block's head of Q and sequence.
template <typename Traits, int kThreads>
FLASHSMITH_DEVICE void clear_unused_rows(const ProblemArgs &problem, const GradientArgs &args) {
  using value_t = typename Traits::value_t;
  const VarlenArgs &varlen = problem.varlen;
  const int head = ptx::block_index_y(), batch = ptx::block_index_z();
  const typename Traits::Sequence sequence(problem, batch);
  const auto clear = [&](const RowRange &queries, const RowRange &keys) {
    clear_rows<value_t, kThreads>(args.dQ, args.dQ_strides, queries, head, problem.d_qk);
    if (head >= problem.n_heads_kv) return;
    clear_rows<value_t, kThreads>(args.dK, args.dK_strides, keys, head, problem.d_qk);
    clear_rows<value_t, kThreads>(args.dV, args.dV_strides, keys, head, problem.d_v);
  };
  // A sequence may be longer than the caller promised; its rows beyond are not visited, so they are
  // cleared.
  const int n_q =
      sequence.seq_len_q() < problem.seq_len_q ? sequence.seq_len_q() : problem.seq_len_q;
  clear(unused_after(sequence.queries(), n_q, varlen.cu_seqlens_q, varlen.rows_q, batch,
                     problem.batch),
        unused_after(sequence.keys(), sequence.seq_len_k(), varlen.cu_seqlens_k, varlen.rows_k,
                     batch, problem.batch));
  if (batch == 0) {
    clear({sequence.queries().batch, 0, sequence.queries().row},
          {sequence.keys().batch, 0, sequence.keys().row});
  }
}

}  // namespace flashsmith
