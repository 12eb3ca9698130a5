// The two matrix products of a warpgroup: S = Q K^T and O += P V.
// Each warp has 16 rows of the 64, as a fragment.
#pragma once

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/ptx/wgmma.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
using SAccumulator = Fragment<Traits::B_c>;
template <typename Traits>
using OAccumulator = Fragment<Traits::d_head>;
template <typename Traits>
using POperand = uint32_t[Traits::PV_steps][4];

// The 64 rows of Q of a warpgroup as the operand of Q K^T: some steps from registers, evenly
// spread, the others from shared memory.
template <typename Traits>
class QOperand {
  static constexpr int kSteps = Traits::QK_steps, kInRegisters = Traits::Q_register_steps;
  static constexpr int kStepsPerBox = Traits::box_columns / kWgmmaK;

  ptx::shared_address rows_ = 0;
  uint32_t fragments_[kInRegisters > 0 ? kInRegisters : 1][4];

  // The index in fragments_ that a step has if it is in registers. Steps in registers are spread
  // evenly, so this index grows by one at each of them, and at no other step.
  static FLASHSMITH_DEVICE int fragment(int step) { return step * kInRegisters / kSteps; }
  static FLASHSMITH_DEVICE bool is_in_registers(int step) {
    return fragment(step + 1) > fragment(step);
  }

 public:
  // `rows`: the first of them in shared memory.
  FLASHSMITH_DEVICE void load(ptx::shared_address rows) {
    constexpr int kChunksPerRow = Traits::row_bytes / 16;
    const int lane = ptx::thread_index() % kWarpSize;
    const int row = ptx::thread_index() % kWarpgroupSize / kWarpSize * kWarpRows + lane % 16;
    // The swizzle permutes a row's chunks by the bits of the address above a line of 128 bytes.
    const int permutation = row * Traits::row_bytes / 128 % kChunksPerRow;
    rows_ = rows;
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      if (!is_in_registers(step)) continue;
      const int chunk = step % kStepsPerBox * 2 + lane / 16;
      ptx::ldmatrix_x4<false>(fragments_[fragment(step)],
                              rows + step / kStepsPerBox * Traits::Q_box_bytes +
                                  row * Traits::row_bytes + (chunk ^ permutation) * 16);
    }
  }

  FLASHSMITH_DEVICE void multiply(SAccumulator<Traits> &S, int step, ptx::MatrixDescriptor K) {
    using value_t = typename Traits::value_t;
    if (is_in_registers(step)) {
      ptx::wgmma_registers<value_t, Traits::B_c, ptx::Major::k>(S, fragments_[fragment(step)], K,
                                                                step > 0);
    } else {
      const ptx::MatrixDescriptor Q = ptx::advance(
          ptx::k_major_descriptor(rows_, Traits::swizzle),
          step / kStepsPerBox * Traits::Q_box_bytes + step % kStepsPerBox * kWgmmaK * 2);
      ptx::wgmma_shared<value_t, Traits::B_c, ptx::Major::k, ptx::Major::k>(S, Q, K, step > 0);
    }
  }
};

// Issues S = Q K^T as a group of its own. `K`: the block in shared memory.
template <typename Traits>
FLASHSMITH_DEVICE void issue_QK(SAccumulator<Traits> &S, QOperand<Traits> &Q,
                                ptx::shared_address K) {
  constexpr int kStepsPerBox = Traits::box_columns / kWgmmaK;
  const ptx::MatrixDescriptor first = ptx::k_major_descriptor(K, Traits::swizzle);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::QK_steps; step++) {
    Q.multiply(S, step,
               ptx::advance(first, step / kStepsPerBox * Traits::KV_box_bytes +
                                       step % kStepsPerBox * kWgmmaK * 2));
  }
  ptx::wgmma_commit_group();
}

// Issues O += P V, or O = P V, as a group of its own. `V`: the block in shared memory.
template <typename Traits>
FLASHSMITH_DEVICE void issue_PV(OAccumulator<Traits> &O, const POperand<Traits> &P,
                                ptx::shared_address V, bool accumulate) {
  const ptx::MatrixDescriptor first =
      ptx::mn_major_descriptor(V, Traits::swizzle, Traits::KV_box_bytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::PV_steps; step++) {
    ptx::wgmma_registers<typename Traits::value_t, Traits::d_head, ptx::Major::mn>(
        O, P[step], ptx::advance(first, step * kWgmmaK * Traits::row_bytes),
        accumulate || step > 0);
  }
  ptx::wgmma_commit_group();
}

}  // namespace flashsmith::sm90
