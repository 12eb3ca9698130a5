// What the kernels of the operation `backward` are told of a call, beside what those of `forward`
// are: ProblemArgs with O and lse, which are read here.
#pragma once

#include "flashsmith/params.h"

namespace flashsmith {

// Row statistics, dQ's sums and blocks of queries are in blocks of so many rows of a sequence.
constexpr int kStatisticsRows = 64;

struct GradientArgs {
  const void *__restrict__ dO;  // (batch, seq_len_q, n_heads, d_v)
  TensorStrides dO_strides;
  const float *__restrict__ dlse;  // (batch, n_heads, seq_len_q), or null
  void *dQ, *dK, *dV;              // laid out as Q, K and V, by strides of their own
  TensorStrides dQ_strides, dK_strides, dV_strides;
  float *__restrict__ dsinks;  // of heads, or null
  void *__restrict__ dbias;    // (batch, n_heads, seq_len_q, seq_len_k), contiguous, or null

  // The workspace (attention/row_statistics.cuh). `sums`: dQ in fp32 where blocks of keys add to
  // it, in blocks of kStatisticsRows * d_head; else null. `summed`: where they add in order, how
  // many blocks of keys, from the first on, have had their turn at each part of a block's sums.
  float *statistics;
  float *sums;
  uint32_t *summed;
  // How many tiles blocks have drawn from the queue (key_tile_queue.cuh): 0 after the statistics.
  // Null: they draw none.
  uint32_t *queue;
  // Blocks of rows of a head: all, and those of one entry of the tensors' batch; and whether
  // sequences share one entry.
  int all_statistics_blocks, n_statistics_blocks;
  bool packed_q;
  bool clears_unused;   // gradients of rows that no sequence has become 0
  float softmax_scale;  // factor of dQ and dK, beside that of scores
};

}  // namespace flashsmith
