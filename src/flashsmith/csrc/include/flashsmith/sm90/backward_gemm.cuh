// The five matrix products of a warpgroup of the backward, for its 64 keys and a block of queries:
// S^T = K Q^T and dP^T = V dO^T, dV += P^T dO and dK += dS^T Q, and dQ = dS K of all keys. Each is
// issued as a separate group.
#pragma once

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/ptx/wgmma.cuh"
#include "flashsmith/sm90/backward_traits.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
using ScoreAccumulator = Fragment<Traits::B_r>;  // of S^T and dP^T
template <typename Traits>
using KeyAccumulator = Fragment<Traits::d_head>;  // of dK and dV
template <typename Traits>
using dQAccumulator = Fragment<Traits::dQ_columns>;
template <typename Traits>
using ScoreOperand = uint32_t[Traits::query_steps][4];  // P^T, dS^T

// Returns an address in shared memory. The offset is recomputed, because descriptors that do not
// change would be kept in registers throughout the loop, which has none to spare.
FLASHSMITH_DEVICE ptx::shared_address place(int offset) {
  return ptx::shared_memory() + ptx::recomputed(offset);
}

// Returns the offset of step `step` along d_head in a tile whose boxes have `box_bytes`.
template <typename Traits>
FLASHSMITH_HOST_DEVICE constexpr int d_step_bytes(int step, int box_bytes) {
  constexpr int kStepsPerBox = Traits::box_columns / kWgmmaK;
  return step / kStepsPerBox * box_bytes + step % kStepsPerBox * kWgmmaK * 2;
}

// The 64 rows of K or V of a warpgroup as the operand of K Q^T or V dO^T: the first steps take them
// from registers, the others from shared memory. Tiles are passed as offsets in shared memory.
template <typename Traits, int kInRegisters>
class KeyOperand {
  static constexpr int kStepsPerBox = Traits::box_columns / kWgmmaK;

  const int rows_;  // offset of the first row
  uint32_t fragments_[kInRegisters > 0 ? kInRegisters : 1][4];

 public:
  FLASHSMITH_DEVICE explicit KeyOperand(int rows) : rows_(rows) {}

  FLASHSMITH_DEVICE void load() {
    // The thread index is recomputed, so that no address stays in a register across tiles.
    const int thread = ptx::recomputed(ptx::thread_index());
    const int lane = thread % kWarpSize;
    const int row = thread % kWarpgroupSize / kWarpSize * kWarpRows + lane % 16;
    const int permutation = chunk_permutation<Traits::row_bytes>(row);
    const ptx::shared_address own_row = ptx::shared_memory() + rows_ + row * Traits::row_bytes;
#pragma unroll
    for (int step = 0; step < kInRegisters; step++) {
      const int chunk = step % kStepsPerBox * 2 + lane / 16;
      ptx::ldmatrix_x4<false>(
          fragments_[step],
          own_row + step / kStepsPerBox * Traits::key_box_bytes + (chunk ^ permutation) * 16);
    }
  }

  // Issues scores = rows queries^T. `queries` is the tile of Q or dO.
  FLASHSMITH_DEVICE void issue_scores(ScoreAccumulator<Traits> &scores, int queries) const {
    using value_t = typename Traits::value_t;
    const ptx::MatrixDescriptor a = ptx::k_major_descriptor(place(rows_), Traits::swizzle);
    const ptx::MatrixDescriptor b = ptx::k_major_descriptor(place(queries), Traits::swizzle);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::score_steps; step++) {
      const ptx::MatrixDescriptor b_step =
          ptx::advance(b, d_step_bytes<Traits>(step, Traits::query_box_bytes));
      if (step < kInRegisters) {
        ptx::wgmma_registers<value_t, Traits::B_r, ptx::Major::k>(scores, fragments_[step], b_step,
                                                                  step > 0);
      } else {
        ptx::wgmma_shared<value_t, Traits::B_r, ptx::Major::k, ptx::Major::k>(
            scores, ptx::advance(a, d_step_bytes<Traits>(step, Traits::key_box_bytes)), b_step,
            step > 0);
      }
    }
    ptx::wgmma_commit_group();
  }
};

// Issues sums += scores queries: P^T dO or dS^T Q.
template <typename Traits>
FLASHSMITH_DEVICE void issue_key_gradient(KeyAccumulator<Traits> &sums,
                                          const ScoreOperand<Traits> &scores, int queries) {
  const ptx::MatrixDescriptor b =
      ptx::mn_major_descriptor(place(queries), Traits::swizzle, Traits::query_box_bytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::query_steps; step++) {
    ptx::wgmma_registers<typename Traits::value_t, Traits::d_head, ptx::Major::mn>(
        sums, scores[step], ptx::advance(b, step * kWgmmaK * Traits::row_bytes), true);
  }
  ptx::wgmma_commit_group();
}

// Issues dQ = dS K. `dS` has all keys; `K` is the box with the first of the columns.
template <typename Traits>
FLASHSMITH_DEVICE void issue_dQ(dQAccumulator<Traits> &dQ, int dS, int K) {
  constexpr int kStepsPerBox = Traits::score_keys / kWgmmaK;
  const ptx::MatrixDescriptor a = ptx::k_major_descriptor(place(dS), Traits::dS_swizzle);
  const ptx::MatrixDescriptor b =
      ptx::mn_major_descriptor(place(K), Traits::swizzle, Traits::key_box_bytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::key_steps; step++) {
    ptx::wgmma_shared<typename Traits::value_t, Traits::dQ_columns, ptx::Major::k, ptx::Major::mn>(
        dQ,
        ptx::advance(
            a, step / kStepsPerBox * Traits::dS_box_bytes + step % kStepsPerBox * kWgmmaK * 2),
        ptx::advance(b, step * kWgmmaK * Traits::row_bytes), step > 0);
  }
  ptx::wgmma_commit_group();
}

}  // namespace flashsmith::sm90
