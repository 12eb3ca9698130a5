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
using RowGradients = Fragment<Traits::d_head / Traits::column_groups>[Traits::m_tiles];

// How many pairs of n tiles ahead of their products fragments of B are loaded: the products of four
// mma take as long as a load.
template <int kTiles>
constexpr int products_ahead = kTiles == 1 ? 3 : 1;

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

// C += A B of kSteps steps along the sum. load_A(fragments by m tile, step), a step ahead of its
// products; load_B(fragment, step, pair of n tiles), a few products ahead.
template <typename value_t, int kSteps, int kTiles, int kElements, typename LoadA, typename LoadB>
FLASHSMITH_DEVICE void multiply_add(float (&C)[kTiles][kElements], LoadA load_A, LoadB load_B) {
  constexpr int kPairs = kElements / 8, kProducts = kSteps * kPairs;
  constexpr int kAhead = products_ahead<kTiles>, kSlots = kAhead + 1;
  uint32_t a[2][kTiles][4], b[kSlots][4];
  const auto load_B_of = [&](int product) {
    if (product < kProducts) load_B(b[product % kSlots], product / kPairs, product % kPairs);
  };
  load_A(a[0], 0);
#pragma unroll
  for (int i = 0; i < kAhead; i++) load_B_of(i);
#pragma unroll
  for (int i = 0; i < kProducts; i++) {
    const int step = i / kPairs;
    load_B_of(i + kAhead);
    if (i % kPairs == kPairs - 1 && step + 1 < kSteps) load_A(a[(step + 1) % 2], step + 1);
    mma_pair<value_t>(C, i % kPairs, a[step % 2], b[i % kSlots]);
  }
}

template <int kTiles, int kElements>
FLASHSMITH_DEVICE void clear(float (&C)[kTiles][kElements]) {
#pragma unroll
  for (auto &fragment : C) {
#pragma unroll
    for (float &element : fragment) element = 0.f;
  }
}

// The products take A and B by what this lane addresses in shared memory for the first fragment of
// the warp's kept rows, or of the visited ones: SmemTile's offset and the tile's. Tiles and the
// rows of warps begin at whole lines, so that the swizzle permutes the sum as it does the offset.

// C = A B^T.
template <typename Traits, int kColumns>
FLASHSMITH_DEVICE void gemm_with_rows(Scores<Traits, kColumns> &C, ptx::shared_address shared,
                                      int A, int B) {
  using T = SmemTile<Traits>;
  clear(C);
  multiply_add<typename Traits::value_t, Traits::d_head / kMmaK>(
      C,
      [&](uint32_t (&a)[Traits::m_tiles][4], int step) {
#pragma unroll
        for (int m = 0; m < Traits::m_tiles; m++) {
          ptx::ldmatrix_x4<false>(a[m], shared + T::fragment_offset(A, m, step));
        }
      },
      [&](uint32_t (&b)[4], int step, int pair) {
        ptx::ldmatrix_x4<false>(b, shared + T::fragment_offset(B, pair, step));
      });
}

// Scores, or their gradients, in the input type: operands of the next product.
template <typename Traits, int kColumns>
using PackedScores = uint32_t[Traits::m_tiles][kColumns / kMmaK][4];

template <typename Traits, int kColumns>
FLASHSMITH_DEVICE void pack_scores(PackedScores<Traits, kColumns> &packed,
                                   const Scores<Traits, kColumns> &S) {
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) {
    pack_operand<typename Traits::value_t>(packed[m], S[m]);
  }
}

// The same of weights, where those that are dropped may be marked: they become zeros.
template <typename Traits, int kColumns>
FLASHSMITH_DEVICE void pack_weights(PackedScores<Traits, kColumns> &packed,
                                    const Scores<Traits, kColumns> &P) {
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) pack_kept<Traits>(packed[m], P[m]);
}

// C += A B, A as a product left it.
template <typename Traits, int kColumns>
FLASHSMITH_DEVICE void gemm_with_columns(RowGradients<Traits> &C,
                                         const PackedScores<Traits, kColumns> &A,
                                         ptx::shared_address shared, int B) {
  multiply_add<typename Traits::value_t, kColumns / kMmaK>(
      C,
      [&](uint32_t (&a)[Traits::m_tiles][4], int step) {
#pragma unroll
        for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
          for (int i = 0; i < 4; i++) a[m][i] = A[m][step][i];
        }
      },
      [&](uint32_t (&b)[4], int step, int pair) {
        ptx::ldmatrix_x4<true>(b, shared + SmemTile<Traits>::fragment_offset(B, step, pair));
      });
}

// The same, of scores that nothing else needs packed.
template <typename Traits, int kColumns>
FLASHSMITH_DEVICE void gemm_with_columns(RowGradients<Traits> &C, const Scores<Traits, kColumns> &A,
                                         ptx::shared_address shared, int B) {
  PackedScores<Traits, kColumns> packed;
  pack_scores<Traits, kColumns>(packed, A);
  gemm_with_columns<Traits, kColumns>(C, packed, shared, B);
}

}  // namespace flashsmith::sm80
