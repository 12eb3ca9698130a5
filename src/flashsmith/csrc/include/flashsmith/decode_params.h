// The arguments of a call that the kernels of the operation `decode` take beside ProblemArgs.
//
// K and V are a KV cache: slots, of which each request uses the first rows of one, or pages that a
// page table lists.
#pragma once

#include "flashsmith/params.h"

namespace flashsmith {

// The statistics of a row of a partial result: a reference, and a sum of exponentials.
constexpr int kStatsPerRow = 2;

// Sizes of the combine kernel: the words that describe a work tile, the threads of a block, the
// elements of a row that a thread adds at a time, and the shared memory for a thread's sums.
constexpr int kSplitWords = 11, kCombineThreads = 512, kPartialChunk = 8;
constexpr int kThreadPartialBytes = (kPartialChunk + kStatsPerRow + 2) * sizeof(float);

// The partial results that a thread has in flight where it combines many. Sums have the same bits
// whoever combines.
constexpr int kSplitsAtOnce = 8;

// Sizes of the kernel that appends rows to a KV cache: a thread moves kAppendChunk 16-bit elements.
constexpr int kAppendThreads = 128, kAppendChunk = 8;

// A divisor that is the same for a whole launch. If 0 <= x < 2^31, x / value is 2 x multiplier,
// shifted to the right by 32 and by `shift`. Granlund, Montgomery: Division by Invariant Integers
// using Multiplication (1994), section 4.
struct Divisor {
  int value;
  uint32_t multiplier;
  int shift;
};

struct CacheArgs {
  // The page table, and the stride between the rows of two requests; null: the rows of a request
  // are in one slot.
  const int32_t *__restrict__ block_table;
  int64_t block_table_stride;
  const int32_t *__restrict__ batch_idx;  // (batch) slots, or null: request i uses slot i
  const int32_t *__restrict__ leftpad;    // (batch) rows before a request's first key, or null
  int n_entries;                          // of the tensors: slots, or with a page table pages
  Divisor rows_per_entry;                 // of the tensors
  int rows;                               // max rows of a request
  int n_new;                              // keys that follow those counted in seqused_k
};

// The time of equal splits, in sixteenths of the time in which an SM reads the longest split with
// its share of the memory bandwidth. `all`: of all splits, if they are as long as the longest one;
// `alone`: of a split whose SM has no other; `last`: of what is left when the other SMs are done,
// if some splits are shorter. `ranges`: of all work ranges of stream-K, in sixteenths of one.
struct SplitTimes {
  int all, alone, last, ranges;
};
constexpr int kWholeTime = 16;  // of such times

// The split-KV schedule of a call.
struct SplitArgs {
  // The number of equal splits of each work tile. If `is_fixed`, the caller has chosen it, whatever
  // the other requests are. Otherwise it is best if every request has the max number of rows, and
  // splits have a min length. If `is_even`, no lengths are read to choose between equal splits and
  // stream-K, which has `n_ranges` work ranges.
  Divisor splits, n_ranges;
  SplitTimes times;
  bool is_fixed, is_even;
  // Whether the next launch may begin as soon as all blocks run, or when they have read their keys:
  // behind equal splits, and behind stream-K.
  bool next_begins_early, next_begins_early_behind_ranges;
  // The partial results: rows of O in FP32, in slots of B_r * d_head, and kStatsPerRow numbers for
  // each row.
  float *partial_O, *partial_stats;
  // Where splits combine their partial results, `arrivals` counts those of each work tile; it is
  // zero again afterwards. The last one to arrive combines, or, in kernels whose splits wait, every
  // split looks `polls` times whether the others have arrived, and combines its share
  // (attention/split_arrivals.cuh). Where a separate kernel combines, `split_tiles` lists the work
  // tiles with their splits. In both cases `combine_groups` threads share the splits of a
  // chunk of a row.
  uint32_t *arrivals, *split_tiles;
  int combine_groups, polls;
};

// A decode call as masks and scores see it, with the KV cache. `group`: heads of Q for each head of
// the cache. `Q_blocks`: work tiles of a head of the cache. `tiles_of_request`, `all_tiles`: work
// tiles of a request, and of all.
struct DecodeProblem : ProblemArgs {
  CacheArgs cache;
  SplitArgs split;
  Divisor group, Q_blocks, tiles_of_request, all_tiles;
};

// The layout of per-token scales. If `of_rows`, each row of the cache has a scale, and batch_stride
// is the stride of slots.
struct RowScales {
  bool of_rows;
  int64_t row_stride;
};

// Rows to append to a KV cache. An FP8 cache stores them divided by its scale.
struct NewRows {
  const void *__restrict__ rows;  // (batch, n_new, n_heads_kv, d_head or d_v)
  void *cache;                    // (slots, rows, n_heads_kv, d_head or d_v)
  TensorStrides strides, cache_strides;
  Fp8Scale scale;
  RowScales row_scales;
};

// The rows to append behind those that each request has. The first `rotary_dim` elements of a row
// of K and Q get a rotary embedding for the row's position; 0: none.
struct AppendArgs {
  NewRows K, V;
  int n_new;
  const void *__restrict__ cos, *__restrict__ sin;  // (rotary_rows, rotary_dim / 2)
  int rotary_rows, rotary_dim;
  bool interleaved;            // pairs are neighbours; else rotary_dim / 2 apart
  bool queries_in_a_row;       // query i has the position of new key i; else all have that of key 0
  const void *__restrict__ Q;  // (batch, seq_len_q, n_heads, d_head), or null
  void *Q_turned;              // as Q
  TensorStrides Q_strides, Q_turned_strides;
};

struct AppendKernelArgs {
  AppendArgs append;
  DecodeProblem problem;  // only the cache, the sizes and the lengths are set
};

typedef void (*append_kernel_fn)(const AppendKernelArgs);

}  // namespace flashsmith
