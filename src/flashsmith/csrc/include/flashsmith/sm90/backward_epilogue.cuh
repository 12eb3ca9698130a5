// Gradients on their way out: dK and dV from registers, dQ from its sums.
#pragma once

#include "flashsmith/sm90/backward_gemm.cuh"
#include "flashsmith/sm90/epilogue.cuh"
#include "flashsmith/sm90/key_tile.cuh"

namespace flashsmith::sm90 {

// Rows of a gradient: `first` that of the fragment's first row, `n_rows` how many from there on
// there are, `n_columns` how many a row has in memory.
template <typename value_t>
struct GradientRows {
  value_t *first;
  int64_t stride;
  int n_rows, n_columns;
};

// Writes 32 columns of a warp's 16 rows, from `column` on: the four lanes of a row exchange words
// until each has 16 bytes of its own.
template <typename Traits>
FLASHSMITH_DEVICE void store_columns(const GradientRows<typename Traits::value_t> &rows,
                                     const float (&elements)[16], int column, float factor) {
  using value_t = typename Traits::value_t;
  const int lane = ptx::thread_index() % kWarpSize;
  const int own_column = column + lane % kLanesPerRow * 8;
#pragma unroll
  for (int half = 0; half < kHalves; half++) {
    ptx::Chunk chunk;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int element = 4 * i + 2 * half;
      chunk.word[i] =
          ptx::pack<value_t>(elements[element] * factor, elements[element + 1] * factor);
    }
    transpose_quad(chunk.word);
    const int row = first_row(lane) + half * kRowsPerHalf;
    if (row < rows.n_rows && (!Traits::padded || own_column < rows.n_columns)) {
      ptx::thread_store_global_16(rows.first + row * rows.stride + own_column, chunk);
    }
  }
}

// A warp's 16 rows, from a column on.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void store_fragment(const GradientRows<typename Traits::value_t> &rows,
                                      const float (&sums)[kElements], float factor,
                                      int first_column = 0) {
#pragma unroll
  for (int first = 0; first < kElements; first += 16) {
    float elements[16];
#pragma unroll
    for (int i = 0; i < 16; i++) elements[i] = sums[first + i];
    store_columns<Traits>(rows, elements, first_column + first * 2, factor);
  }
}

// Those of dQ, of a head and from a row of the sequence on.
template <typename Traits>
FLASHSMITH_DEVICE GradientRows<typename Traits::value_t> dQ_rows(
    const Sm90BackwardKernelArgs &args, const typename Traits::Sequence &sequence, int head,
    int row) {
  using value_t = typename Traits::value_t;
  const TensorStrides &strides = args.gradient.dQ_strides;
  const Place place = sequence.queries();
  return {static_cast<value_t *>(args.gradient.dQ) + place.batch * strides.batch +
              head * strides.head + (place.row + row) * strides.seq,
          strides.seq, sequence.seq_len_q() - row, args.problem.d_qk};
}

// dK or dV of the warp's 16 keys.
template <typename Traits>
FLASHSMITH_DEVICE void store_key_gradient(void *out, const TensorStrides &strides, int n_columns,
                                          const KeyTile<Traits> &tile, int warpgroup,
                                          const KeyAccumulator<Traits> &sums, float factor) {
  using value_t = typename Traits::value_t;
  const Place place = tile.sequence.keys();
  const int warp = ptx::thread_index() % kWarpgroupSize / kWarpSize;
  const int key = tile.key + warpgroup * kWgmmaM + warp * kWarpRows;
  const GradientRows<value_t> rows{static_cast<value_t *>(out) + place.batch * strides.batch +
                                       tile.head_kv * strides.head +
                                       (place.row + key) * strides.seq,
                                   strides.seq, tile.sequence.seq_len_k() - key, n_columns};
  store_fragment<Traits>(rows, sums, factor);
}

// dQ of a block of queries from sums in any order, which lie as the consumers' accumulators did.
// Grid: (blocks of kStatisticsRows of the longest sequence, n_heads, batch). Block: kWarpgroupSize.
template <typename Traits>
__global__ void __launch_bounds__(kWarpgroupSize)
    dQ_conversion_kernel(const __grid_constant__ Sm90BackwardKernelArgs args) {
  const GradientArgs &gradient = args.gradient;
  const int block = ptx::block_index_x(), head = ptx::block_index_y();
  const int thread = ptx::thread_index(), warp = thread / kWarpSize;
  const typename Traits::Sequence sequence(args.problem, ptx::block_index_z());
  const int row = block * Traits::B_r + warp * kWarpRows;
  if (row >= sequence.seq_len_q()) return;
  const float *sums = sums_of<Traits::d_head>(
      gradient, first_statistics_block(gradient, sequence, ptx::block_index_z()) + block, head);
  Fragment<Traits::d_head> elements;
#pragma unroll
  for (int i = 0; i < Traits::d_head / 8; i++) {
    const ptx::Chunk chunk = ptx::load_global_16(sums + (i * kWarpgroupSize + thread) * 4);
#pragma unroll
    for (int word = 0; word < 4; word++) elements[4 * i + word] = ptx::bits_float(chunk.word[word]);
  }
  store_fragment<Traits>(dQ_rows<Traits>(args, sequence, head, row), elements,
                         gradient.softmax_scale);
}

}  // namespace flashsmith::sm90
