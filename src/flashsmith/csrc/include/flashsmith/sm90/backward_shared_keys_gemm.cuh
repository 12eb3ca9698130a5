// The five matrix products of a warpgroup that shares the keys of its block with the others:
// S = Q K^T and dP = dO V^T of its 32 keys, and its columns of dV^T += dO^T P, dK^T += Q^T dS and
// dQ = dS K of all keys. Each is issued as a separate group.
//
// All operands are in shared memory: P and dS of all warpgroups, and Q and dO, which are read along
// rows for scores and along columns for gradients. The rows of dK^T and dV^T are columns of dK and
// dV, because a wgmma has 64 rows, and a block 96 keys.
#pragma once

#include "flashsmith/sm90/backward_gemm.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
using SharedKeyScores = Fragment<Traits::score_keys>;  // of S and dP
template <typename Traits>
using TransposedAccumulator = Fragment<Traits::B_c>;  // of dK^T and dV^T
template <typename Traits>
using SharedKeyOperand = uint32_t[Traits::score_keys / kWgmmaK][4];  // P, dS

// Issues scores = queries keys^T: Q K^T or dO V^T. `keys` is the first row of the warpgroup's keys.
template <typename Traits>
FLASHSMITH_DEVICE void issue_scores(SharedKeyScores<Traits> &scores, int queries, int keys) {
  const ptx::MatrixDescriptor a = ptx::k_major_descriptor(place(queries), Traits::swizzle);
  const ptx::MatrixDescriptor b = ptx::k_major_descriptor(place(keys), Traits::swizzle);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::score_steps; step++) {
    ptx::wgmma_shared<typename Traits::value_t, Traits::score_keys, ptx::Major::k, ptx::Major::k>(
        scores, ptx::advance(a, d_step_bytes<Traits>(step, Traits::query_box_bytes)),
        ptx::advance(b, d_step_bytes<Traits>(step, Traits::key_box_bytes)), step > 0);
  }
  ptx::wgmma_commit_group();
}

// Issues sums += columns^T scores: dO^T P or Q^T dS. `columns` is the box of dO or Q with the
// warpgroup's columns.
template <typename Traits>
FLASHSMITH_DEVICE void issue_transposed_gradient(TransposedAccumulator<Traits> &sums, int columns,
                                                 int scores) {
  static_assert(Traits::box_columns == kWgmmaM, "a box has the columns of a warpgroup");
  const ptx::MatrixDescriptor a =
      ptx::mn_major_descriptor(place(columns), Traits::swizzle, Traits::query_box_bytes);
  const ptx::MatrixDescriptor b =
      ptx::mn_major_descriptor(place(scores), Traits::dS_swizzle, Traits::dS_box_bytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::query_steps; step++) {
    ptx::wgmma_shared<typename Traits::value_t, Traits::B_c, ptx::Major::mn, ptx::Major::mn>(
        sums, ptx::advance(a, step * kWgmmaK * Traits::row_bytes),
        ptx::advance(b, step * kWgmmaK * Traits::dS_row_bytes), true);
  }
  ptx::wgmma_commit_group();
}

}  // namespace flashsmith::sm90
