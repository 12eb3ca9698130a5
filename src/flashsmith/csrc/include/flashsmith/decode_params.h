// What the kernels of the operation `decode` are told of a call, beside what those of `forward`
// are.
//
// K and V are a cache: entries of rows, of which a request uses the first of one entry, or pages
// that a table lists.
#pragma once

#include "flashsmith/params.h"

namespace flashsmith {

// Numbers that a row of sums has beside its elements: a reference, and a sum of exponentials.
constexpr int kStatsPerRow = 2;

// Of the kernel that combines: words that it is told of a work tile, threads of a block, of which
// each has so many elements of a row at a time, and what it has in shared memory: their sums.
constexpr int kSplitWords = 11, kCombineThreads = 512, kPartialChunk = 8;
constexpr int kThreadPartialBytes = (kPartialChunk + kStatsPerRow + 2) * sizeof(float);

// Of the kernel that puts rows into a cache: a thread moves a chunk of so many 16-bit elements.
constexpr int kAppendThreads = 128, kAppendChunk = 8;

struct CacheArgs {
  // A request's pages, and how far those of two requests are apart; null: its rows are in one
  // entry.
  const int32_t *__restrict__ block_table;
  int64_t block_table_stride;
  const int32_t *__restrict__ batch_idx;  // which entry that is, or null: the request's own number
  const int32_t *__restrict__ leftpad;    // rows of each request before its first key, or null
  int n_entries, rows_per_entry;          // of the tensors; with a table these are pages
  int page_shift;                         // 2 to it is rows_per_entry; below 0: nothing is
  int rows;                               // that a request may have
  int n_new;                              // keys behind those that lengths tell of
};

// How the keys of a work tile are split among thread blocks.
struct SplitArgs {
  int splits;  // as many for each, whatever the others are; 0: all blocks have as much to do
  // Else: how many keep all SMs busy if all requests have all rows; of so many splits of
  // all work tiles those that one has at most; and its blocks. `is_even`: lengths need not be
  // asked.
  int even_splits, splits_of_SM, blocks_of_SM;
  bool is_even;
  // What splits store: sums of rows in fp32, in slots of B_r * d_head, and kStatsPerRow of each
  // row.
  float *partial_O, *partial_stats;
  // Where the last split combines: how many splits of each work tile have arrived, which stays
  // zero. Where a kernel of its own does: which work tiles are split, and how many of its threads
  // share the splits of a chunk of a row.
  uint32_t *arrivals, *split_tiles;
  int combine_groups;
};

// The part of a call that masks and scores are told of, with the cache. `group`: heads of Q to one
// of the cache. `Q_blocks`: work tiles of a head.
struct DecodeProblem : ProblemArgs {
  CacheArgs cache;
  SplitArgs split;
  int group, Q_blocks;
};

// Where a scale is of each row: then batch_stride is that of entries of the cache.
struct RowScales {
  bool of_rows;
  int64_t row_stride;
};

// Rows on their way to a cache. They are divided by the scale of a cache of 8 bits.
struct NewRows {
  const void *__restrict__ rows;  // (batch, n_new, n_heads_kv, d_head or d_v)
  void *cache;                    // (entries, rows, n_heads_kv, d_head or d_v)
  TensorStrides strides, cache_strides;
  Fp8Scale scale;
  RowScales row_scales;
};

// What is put into a cache: the rows that follow those of each request. `rotary_dim`: elements of a
// row of K and Q that are turned by an angle of their position; 0: none.
struct AppendArgs {
  NewRows K, V;
  int n_new;
  const void *__restrict__ cos, *__restrict__ sin;  // (rotary_rows, rotary_dim / 2)
  int rotary_rows, rotary_dim;
  bool interleaved;       // pairs are neighbours; else one half of rotary_dim apart
  bool queries_in_a_row;  // query i is at the place of new key i; else all at that of the first
  const void *__restrict__ Q;  // (batch, seq_len_q, n_heads, d_head), or null
  void *Q_turned;              // likewise
  TensorStrides Q_strides, Q_turned_strides;
};

struct AppendKernelArgs {
  AppendArgs append;
  DecodeProblem problem;  // the cache, the sizes and the lengths alone
};

typedef void (*append_kernel_fn)(const AppendKernelArgs);

}  // namespace flashsmith
