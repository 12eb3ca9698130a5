// The products of the sums backward whose scores come from shared memory: gradients of keys if
// warps share keys, and dQ.
#pragma once

#include "flashsmith/sm80/backward_gemm.cuh"
#include "flashsmith/sm80/column_groups.cuh"

namespace flashsmith::sm80 {

// The part of a warp's share of a tile's dQ that it computes at a time.
template <typename Traits>
using dQFragments = Fragment<Traits::dQ_pairs * 2 * kMmaN>[Traits::dQ_tiles];

// Writes scores, or their gradients, of the warp's keys from `key` on with the queries from `query`
// on.
template <typename Traits, int kColumns>
FLASHSMITH_DEVICE void store_scores(const PackedScores<Traits, kColumns> &S,
                                    ptx::shared_address tile, int key, int query) {
  using ScoreTile = SmemTile<typename Traits::ScoreTile>;
  const int lane = ptx::recomputed(ptx::thread_index()) % kWarpSize, word = lane % kLanesPerRow * 4;
  const ptx::shared_address own =
      tile + ScoreTile::offset(key + first_row(lane), query / kChunkElements) + word;
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
    for (int i = 0; i < kColumns / 4; i++) {
      const int row = m * kMmaM + i % 2 * kRowsPerHalf, chunk = i / 2;
      ptx::store_shared_4(own + ScoreTile::offset(row, chunk), S[m][i / 4][i % 4]);
    }
  }
}

// Computes C += A B: A is the weights or dS of the warp's keys, B the warp's columns of dO or Q.
template <typename Traits>
FLASHSMITH_DEVICE void gemm_of_keys(RowGradients<Traits> &C, ptx::shared_address shared, int A,
                                    int B) {
  using T = SmemTile<Traits>;
  using ScoreTile = SmemTile<typename Traits::ScoreTile>;
  multiply_add<typename Traits::value_t, Traits::B_r / kMmaK>(
      C,
      [&](uint32_t (&a)[Traits::m_tiles][4], int step) {
#pragma unroll
        for (int m = 0; m < Traits::m_tiles; m++) {
          ptx::ldmatrix_x4<false>(a[m], shared + ScoreTile::fragment_offset(A, m, step));
        }
      },
      [&](uint32_t (&b)[4], int step, int pair) {
        ptx::ldmatrix_x4<true>(b,
                               shared + T::fragment_offset(B, step, pair * Traits::column_groups));
      });
}

// Computes C = A B: A is the rows of dS, which is stored transposed, B the columns of K.
template <typename Traits>
FLASHSMITH_DEVICE void gemm_of_queries(dQFragments<Traits> &C, ptx::shared_address shared, int A,
                                       int B) {
  using T = SmemTile<Traits>;
  using ScoreTile = SmemTile<typename Traits::ScoreTile>;
  clear(C);
  multiply_add<typename Traits::value_t, Traits::B_c / kMmaK>(
      C,
      [&](uint32_t (&a)[Traits::dQ_tiles][4], int step) {
#pragma unroll
        for (int m = 0; m < Traits::dQ_tiles; m++) {
          ptx::ldmatrix_x4<true>(a[m], shared + ScoreTile::fragment_offset(A, step, m));
        }
      },
      [&](uint32_t (&b)[4], int step, int pair) {
        ptx::ldmatrix_x4<true>(
            b, shared + T::fragment_offset(B, step, pair * Traits::dQ_column_groups));
      });
}

}  // namespace flashsmith::sm80
