// The two kinds of matrix products of a warp's kept rows with a visited tile, on mma.m16n8k16: with
// the tile's rows, and with its columns.
#pragma once

#include "flashsmith/attention/dropout.cuh"
#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/sm80/gemm.cuh"
#include "flashsmith/sm80/smem_tile.cuh"

namespace flashsmith::sm80 {

// Scores of a warp's kept rows with kColumns visited rows, and gradients of the kept rows, by m
// tile.
template <typename Traits, int kColumns>
using Scores = Fragment<kColumns>[Traits::m_tiles];
template <typename Traits>
using RowGradients = Fragment<Traits::d_head / Traits::column_groups>[Traits::m_tiles];

// The number of pairs of n tiles by which loads of B's fragments precede their products: the
// products of four mma take as long as a load.
template <int kTiles>
constexpr int products_ahead = kTiles == 1 ? 3 : 1;

// Computes two n tiles of C += A B, by m tile. One ldmatrix.x4 has loaded `b`.
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

// Computes C += A B in kSteps steps along the sum. load_A(fragments by m tile, step) runs a step
// ahead of its products; load_B(fragment, step, pair of n tiles) a few products ahead.
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

// The products take A and B as the offset in shared memory that this lane addresses for the first
// fragment of the warp's kept rows, or of the visited rows: SmemTile's offset plus the tile's.
// Tiles and the rows of warps begin at whole lines, so that the swizzle permutes the sum as it does
// the offset.

// Computes C = A B^T.
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

// Scores, or their gradients, in the input type, as operands of the next product.
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

// Packs weights. Weights that are marked as dropped become zeros.
template <typename Traits, int kColumns>
FLASHSMITH_DEVICE void pack_weights(PackedScores<Traits, kColumns> &packed,
                                    const Scores<Traits, kColumns> &P) {
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) pack_kept<Traits>(packed[m], P[m]);
}

// Computes C += A B, with A in the layout of a product's result.
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

// Packs the scores, for callers that do not need them packed elsewhere.
template <typename Traits, int kColumns>
FLASHSMITH_DEVICE void gemm_with_columns(RowGradients<Traits> &C, const Scores<Traits, kColumns> &A,
                                         ptx::shared_address shared, int B) {
  PackedScores<Traits, kColumns> packed;
  pack_scores<Traits, kColumns>(packed, A);
  gemm_with_columns<Traits, kColumns>(C, packed, shared, B);
}

}  // namespace flashsmith::sm80
