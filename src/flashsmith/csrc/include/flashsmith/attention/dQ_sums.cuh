// dQ where blocks of keys add to it in FP32 in global memory, and its conversion to the tensor. A
// block of kStatisticsRows queries is stored as fragments of four warps, 16 rows each: chunk i has
// columns 8 i to 8 i + 7, four elements a thread.
#pragma once

#include "flashsmith/attention/gradient_rows.cuh"
#include "flashsmith/attention/row_statistics.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/ptx/global_exchange.cuh"

namespace flashsmith {

constexpr int kSumsThreads = kStatisticsRows / kFragmentRows * kWarpSize;

// Returns the index of a thread's word of a chunk. Bulk copies of whole fragments, and threads that
// add four words at a time, need a thread's four words side by side; a warp that adds single words
// needs its 32 words side by side.
template <bool kWordsTogether>
FLASHSMITH_DEVICE int sums_place(int chunk, int thread, int word) {
  constexpr int kWords = 4;
  if constexpr (kWordsTogether) return (chunk * kSumsThreads + thread) * kWords + word;
  return (chunk * kWords + word) * kSumsThreads + thread;
}

// Adds a thread's words of a chunk. Every word is an atomic addition; all lanes of a warp call
// this.
template <bool kWordsTogether>
FLASHSMITH_DEVICE void add_to_sums(float *sums, int chunk, int thread, const float (&words)[4]) {
  if constexpr (kWordsTogether) {
    ptx::add_global_16(sums + sums_place<true>(chunk, thread, 0), words);
  } else {
#pragma unroll
    for (int word = 0; word < 4; word++) {
      ptx::add_global_4(sums + sums_place<false>(chunk, thread, word), words[word]);
    }
  }
}

// The launch before this one wrote them (ptx/dependent_launch.cuh), so L1 may have older ones.
template <bool kWordsTogether>
FLASHSMITH_DEVICE void load_sums(float *words, const float *sums, int chunk, int thread) {
  if constexpr (kWordsTogether) {
    const ptx::Chunk found = ptx::load_global_cg_16(sums + sums_place<true>(chunk, thread, 0));
#pragma unroll
    for (int word = 0; word < 4; word++) words[word] = ptx::bits_float(found.word[word]);
  } else {
#pragma unroll
    for (int word = 0; word < 4; word++) {
      words[word] = ptx::bits_float(
          ptx::thread_load_global_cg_4(sums + sums_place<false>(chunk, thread, word)));
    }
  }
}

// Returns the rows of a head of dQ from `row` of the sequence on.
template <typename Traits, typename Args>
FLASHSMITH_DEVICE GradientRows<typename Traits::value_t> dQ_rows(
    const Args &args, const typename Traits::Sequence &sequence, int head, int row) {
  using value_t = typename Traits::value_t;
  const TensorStrides &strides = args.gradient.dQ_strides;
  const RowOffset place = sequence.queries();
  return {static_cast<value_t *>(args.gradient.dQ) + place.batch * strides.batch +
              head * strides.head + (place.row + row) * strides.seq,
          strides.seq, sequence.seq_len_q() - row, args.problem.d_qk};
}

// Converts the FP32 sums of a block of queries, added in any order, to dQ, in heads whose sums the
// main kernel has not converted. Grid: (blocks of kStatisticsRows of the longest sequence, n_heads,
// batch); or, if the main kernel has converted some, (blocks, heads of all batch entries that are
// left, 1). Block: kSumsThreads.
template <typename Traits, typename Args>
__global__ void __launch_bounds__(kSumsThreads)
    dQ_conversion_kernel(const __grid_constant__ Args args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  const GradientArgs &gradient = args.gradient;
  const ProblemArgs &problem = args.problem;
  int head = ptx::block_index_y(), batch = ptx::block_index_z();
  if (gradient.n_early > 0) {
    head += gradient.n_early;
    const int rank = head / problem.n_heads;
    head -= rank * problem.n_heads;
    batch = batch_at<Traits>(problem, rank);
  }
  const int block = ptx::block_index_x();
  const int thread = ptx::thread_index(), warp = thread / kWarpSize;
  const typename Traits::Sequence sequence(problem, batch);
  const int row = block * kStatisticsRows + warp * kFragmentRows;
  if (row >= sequence.seq_len_q()) return;
  const float *sums = sums_of<Traits::d_head>(
      gradient, first_statistics_block(gradient, sequence, batch) + block, head);
  Fragment<Traits::d_head> elements;
#pragma unroll
  for (int i = 0; i < Traits::d_head / 8; i++) {
    load_sums<Traits::sums_by_chunks>(elements + 4 * i, sums, i, thread);
  }
  store_fragment<Traits>(dQ_rows<Traits>(args, sequence, head, row), elements,
                         gradient.softmax_scale);
}

}  // namespace flashsmith
