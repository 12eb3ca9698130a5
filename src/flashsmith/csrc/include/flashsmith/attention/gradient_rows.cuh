// Stores rows of gradients from fragments to memory.
#pragma once

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/params.h"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith {

// The rows of a gradient in memory: `first` points to the fragment's first row, `n_rows` rows exist
// from there on, and a row has `n_columns` elements.
template <typename value_t>
struct GradientRows {
  value_t *first;
  int64_t stride;
  int n_rows, n_columns;
};

// Writes 32 columns of a warp's 16 rows, from `column` on. The four lanes of a row exchange words
// until each lane has 16 contiguous bytes.
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

// Writes a warp's 16 rows, from a column on.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void store_fragment(const GradientRows<typename Traits::value_t> &rows,
                                      const float (&gradients)[kElements], float factor,
                                      int first_column = 0) {
#pragma unroll
  for (int first = 0; first < kElements; first += 16) {
    float elements[16];
#pragma unroll
    for (int i = 0; i < 16; i++) elements[i] = gradients[first + i];
    store_columns<Traits>(rows, elements, first_column + first * 2, factor);
  }
}

}  // namespace flashsmith
