// The two matrix products of a warpgroup: S = Q K^T and O += P V.
//
// Accumulators, of lane l of warp w: element 4 * j + 2 * h + i is column 8 * j + 2 * (l % 4) + i of
// row 16 * w + l / 4 + 8 * h. Two groups of four of S are an operand fragment of P.
#pragma once

#include "flashsmith/hopper/static_kernel_configuration.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/ptx/wgmma.cuh"

namespace flashsmith {

template <typename Kernel>
using SAccumulator = float[Kernel::B_c / 2];
template <typename Kernel>
using OAccumulator = float[Kernel::d_head / 2];
template <typename Kernel>
using POperand = uint32_t[Kernel::PV_steps][4];

// The 64 rows of Q of a warpgroup as the operand of Q K^T: some steps from registers, evenly
// spread, the others from shared memory.
template <typename Kernel>
class QOperand {
  static constexpr int kSteps = Kernel::QK_steps, kInRegisters = Kernel::Q_register_steps;
  static constexpr int kStepsPerBox = Kernel::box_columns / kWgmmaK;

  ptx::shared_address rows_ = 0;
  uint32_t fragments_[kInRegisters > 0 ? kInRegisters : 1][4];

  // Of a step, where its fragment is, or would be.
  static FLASHSMITH_DEVICE int fragment(int step) { return step * kInRegisters / kSteps; }
  static FLASHSMITH_DEVICE bool is_in_registers(int step) {
    return fragment(step + 1) > fragment(step);
  }

 public:
  // `rows`: the first of them in shared memory.
  FLASHSMITH_DEVICE void load(ptx::shared_address rows) {
    constexpr int kChunksPerRow = Kernel::row_bytes / 16;
    const int lane = ptx::thread_index() % kWarpSize;
    const int row = ptx::thread_index() % kWarpgroupSize / kWarpSize * kWarpRows + lane % 16;
    // The swizzle permutes a row's chunks by the bits of the address above a line of 128 bytes.
    const int permutation = row * Kernel::row_bytes / 128 % kChunksPerRow;
    rows_ = rows;
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      if (!is_in_registers(step)) continue;
      const int chunk = step % kStepsPerBox * 2 + lane / 16;
      ptx::ldmatrix_x4<false>(fragments_[fragment(step)],
                              rows + step / kStepsPerBox * Kernel::Q_box_bytes +
                                  row * Kernel::row_bytes + (chunk ^ permutation) * 16);
    }
  }

  FLASHSMITH_DEVICE void multiply(SAccumulator<Kernel> &S, int step, ptx::MatrixDescriptor K) {
    using value_t = typename Kernel::value_t;
    if (is_in_registers(step)) {
      ptx::wgmma_registers<value_t, Kernel::B_c, ptx::Major::k>(S, fragments_[fragment(step)], K,
                                                                step > 0);
    } else {
      const ptx::MatrixDescriptor Q = ptx::advance(
          ptx::k_major_descriptor(rows_, Kernel::swizzle),
          step / kStepsPerBox * Kernel::Q_box_bytes + step % kStepsPerBox * kWgmmaK * 2);
      ptx::wgmma_shared<value_t, Kernel::B_c, ptx::Major::k, ptx::Major::k>(S, Q, K, step > 0);
    }
  }
};

// Issues S = Q K^T as a group of its own. `K`: the block in shared memory.
template <typename Kernel>
FLASHSMITH_DEVICE void issue_QK(SAccumulator<Kernel> &S, QOperand<Kernel> &Q,
                                ptx::shared_address K) {
  constexpr int kStepsPerBox = Kernel::box_columns / kWgmmaK;
  const ptx::MatrixDescriptor first = ptx::k_major_descriptor(K, Kernel::swizzle);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Kernel::QK_steps; step++) {
    Q.multiply(S, step,
               ptx::advance(first, step / kStepsPerBox * Kernel::KV_box_bytes +
                                       step % kStepsPerBox * kWgmmaK * 2));
  }
  ptx::wgmma_commit_group();
}

// Issues O += P V, or O = P V, as a group of its own. `V`: the block in shared memory.
template <typename Kernel>
FLASHSMITH_DEVICE void issue_PV(OAccumulator<Kernel> &O, const POperand<Kernel> &P,
                                ptx::shared_address V, bool accumulate) {
  const ptx::MatrixDescriptor first =
      ptx::mn_major_descriptor(V, Kernel::swizzle, Kernel::KV_box_bytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Kernel::PV_steps; step++) {
    ptx::wgmma_registers<typename Kernel::value_t, Kernel::d_head, ptx::Major::mn>(
        O, P[step], ptx::advance(first, step * kWgmmaK * Kernel::row_bytes),
        accumulate || step > 0);
  }
  ptx::wgmma_commit_group();
}

}  // namespace flashsmith
