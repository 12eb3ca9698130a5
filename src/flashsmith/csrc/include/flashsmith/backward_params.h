// The arguments of a call that the kernels of the operation `backward` take beside ProblemArgs,
// whose O and lse they read.
#pragma once

#include "flashsmith/params.h"

namespace flashsmith {

// Row statistics, FP32 accumulators of dQ and blocks of queries all have this number of rows of a
// sequence.
constexpr int kStatisticsRows = 64;

struct GradientArgs {
  const void *__restrict__ dO;  // (batch, seq_len_q, n_heads, d_v)
  TensorStrides dO_strides;
  const float *__restrict__ dlse;  // (batch, n_heads, seq_len_q), or null
  void *dQ, *dK, *dV;              // in the layouts of Q, K and V, with separate strides
  TensorStrides dQ_strides, dK_strides, dV_strides;
  float *__restrict__ dsinks;  // (n_heads), or null
  void *__restrict__ dbias;    // (batch, n_heads, seq_len_q, seq_len_k), contiguous, or null

  // The workspace (attention/row_statistics.cuh). `sums` accumulates dQ in FP32, in blocks of
  // kStatisticsRows * d_head, where blocks of keys add to it in memory; else it is null. `summed`
  // counts, for each part of a block of `sums`, the blocks of keys (from the first on) that have
  // added their share; it is used where they add in order.
  float *statistics;
  float *sums;
  uint32_t *summed;
  // The number of tiles that thread blocks have drawn from the queue (key_tile_queue.cuh); the
  // kernel of the row statistics sets it to 0. Null: tiles are not drawn from a queue.
  uint32_t *queue;
  // The main kernel converts dQ of the first `n_early` heads of Q, counted over all batch entries;
  // a kernel after it converts the others. `finished` counts, for each head of K or part of one,
  // what adding threads have finished, one for each tile (backward_converter.cuh).
  uint32_t *finished;
  int n_early;
  // The main kernel clears the sums of the last `n_cleared_later` heads, up to `n_ahead` heads
  // before those that it converts; the kernel of the row statistics clears those of the others.
  // `cleared` counts, for each head of Q of all batch entries, its slices of sums that are cleared,
  // and `drawn_slices` those that thread blocks have begun (backward_clearer.cuh).
  int n_cleared_later, n_ahead;
  uint32_t *cleared, *drawn_slices;
  // The kernel of the row statistics sets this number of counters to 0, from `finished` on.
  int n_counters;
  // The number of blocks of rows that a head has in all, and in one batch entry of the tensors; and
  // whether all sequences lie in one batch entry.
  int all_statistics_blocks, n_statistics_blocks;
  bool packed_q;
  bool clears_unused;   // writes 0 into gradients of rows that no sequence has
  float softmax_scale;  // factor of dQ and dK
};

}  // namespace flashsmith
