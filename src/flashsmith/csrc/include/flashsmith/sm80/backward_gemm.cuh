// The two kinds of matrix products of a warp's kept rows with a visited tile, on mma.m16n8k16: with
// its rows, and with its columns.
#pragma once

#include "flashsmith/attention/dropout.cuh"
#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/sm80/gemm.cuh"
#include "flashsmith/sm80/smem_tile.cuh"

namespace flashsmith::sm80 {

// Scores of a warp's kept rows with kColumns visited ones, and gradients of its rows, by m tile.
template <typename Traits, int kColumns>
using Scores = Fragment<kColumns>[Traits::m_tiles];
template <typename Traits>
using RowGradients = Fragment<Traits::d_head>[Traits::m_tiles];

// How many pairs of n tiles ahead of their products fragments of B are loaded: the products of four
// mma take as long as a load.
template <typename Traits>
constexpr int products_ahead = Traits::m_tiles == 1 ? 3 : 1;

// Two n tiles of C += A B, by m tile: `b` is what one ldmatrix.x4 has loaded.
template <typename value_t, int kTiles, int kElements>
FLASHSMITH_DEVICE void mma_pair(float (&C)[kTiles][kElements], int pair,
                                const uint32_t (&a)[kTiles][4], const uint32_t (&b)[4]) {
#pragma unroll
  for (int n = 0; n < 2; n++) {
#pragma unroll
    for (int m = 0; m < kTiles; m++) {
      ptx::mma_m16n8k16<value_t>(n_tile(C[m], 2 * pair + n), a[m], b[2 * n], b[2 * n + 1]);
    }
  }
}

// The products take A and B by what this lane addresses in shared memory for the first fragment of
// the warp's kept rows, or of the visited ones: SmemTile's offset and the tile's. Tiles and the
// rows of warps begin at whole lines, so that the swizzle permutes the sum as it does the offset.

// C = A B^T. Fragments of A are loaded a step ahead, those of B a few products.
template <typename Traits, int kColumns>
FLASHSMITH_DEVICE void gemm_with_rows(Scores<Traits, kColumns> &C, ptx::shared_address shared,
                                      int A, int B) {
  constexpr int kSteps = Traits::d_head / kMmaK, kPairs = kColumns / (2 * kMmaN);
  constexpr int kAhead = products_ahead<Traits>, kSlots = kAhead + 1;
  uint32_t a[2][Traits::m_tiles][4], b[kSlots][4];
  const auto load_A = [&](int step) {
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      ptx::ldmatrix_x4<false>(a[step % 2][m],
                              shared + SmemTile<Traits>::fragment_offset(A, m, step));
    }
  };
  const auto load_B = [&](int i) {
    if (i >= kSteps * kPairs) return;
    ptx::ldmatrix_x4<false>(b[i % kSlots],
                            shared + SmemTile<Traits>::fragment_offset(B, i % kPairs, i / kPairs));
  };
#pragma unroll
  for (auto &fragment : C) {
#pragma unroll
    for (float &element : fragment) element = 0.f;
  }
  load_A(0);
#pragma unroll
  for (int i = 0; i < kAhead; i++) load_B(i);
#pragma unroll
  for (int i = 0; i < kSteps * kPairs; i++) {
    const int step = i / kPairs;
    load_B(i + kAhead);
    if (i % kPairs == kPairs - 1 && step + 1 < kSteps) load_A(step + 1);
    mma_pair<typename Traits::value_t>(C, i % kPairs, a[step % 2], b[i % kSlots]);
  }
}

// C += A B, A as a product left it; kMarked: of weights, those that are kept. Fragments are loaded
// a few products ahead.
template <typename Traits, int kColumns, bool kMarked>
FLASHSMITH_DEVICE void gemm_with_columns(RowGradients<Traits> &C, const Scores<Traits, kColumns> &A,
                                         ptx::shared_address shared, int B) {
  constexpr int kSteps = kColumns / kMmaK, kPairs = Traits::d_head / (2 * kMmaN);
  constexpr int kAhead = products_ahead<Traits>, kSlots = kAhead + 1;
  uint32_t a[kSteps][Traits::m_tiles][4], b[kSlots][4];
  const auto load = [&](int i) {
    if (i >= kSteps * kPairs) return;
    ptx::ldmatrix_x4<true>(b[i % kSlots],
                           shared + SmemTile<Traits>::fragment_offset(B, i / kPairs, i % kPairs));
  };
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) {
    uint32_t operand[kSteps][4];
    if constexpr (kMarked) {
      pack_kept<Traits>(operand, A[m]);
    } else {
      pack_operand<typename Traits::value_t>(operand, A[m]);
    }
#pragma unroll
    for (int i = 0; i < 4 * kSteps; i++) a[i / 4][m][i % 4] = operand[i / 4][i % 4];
  }
#pragma unroll
  for (int i = 0; i < kAhead; i++) load(i);
#pragma unroll
  for (int i = 0; i < kSteps * kPairs; i++) {
    load(i + kAhead);
    mma_pair<typename Traits::value_t>(C, i % kPairs, a[i / kPairs], b[i % kSlots]);
  }
}

}  // namespace flashsmith::sm80
