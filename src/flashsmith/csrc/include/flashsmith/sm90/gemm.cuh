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

// box_of_step returns the offset of the box with the columns that a step sums over, and
// place_of_step the offset of these columns.
template <BoxedRows kTile>
FLASHSMITH_DEVICE int box_of_step(int step) {
  return step / (kTile.row_bytes / kWgmmaKBytes) * kTile.box_bytes;
}
template <BoxedRows kTile>
FLASHSMITH_DEVICE int place_of_step(int step) {
  return box_of_step<kTile>(step) + step % (kTile.row_bytes / kWgmmaKBytes) * kWgmmaKBytes;
}

// The 64 rows of Q of a warpgroup as the operand of Q K^T: some steps, evenly spread, take them
// from registers, the others from shared memory.
template <typename Traits>
class QOperand {
  static constexpr int kSteps = Traits::QK_steps, kInRegisters = Traits::Q_register_steps;

  ptx::shared_address rows_ = 0;
  uint32_t fragments_[kInRegisters > 0 ? kInRegisters : 1][4];

  // Returns the index in fragments_ of a step that is in registers. Steps in registers are spread
  // evenly, so this index grows by one at each of them, and at no other step.
  static FLASHSMITH_DEVICE int fragment(int step) { return step * kInRegisters / kSteps; }
  static FLASHSMITH_DEVICE bool is_in_registers(int step) {
    return fragment(step + 1) > fragment(step);
  }

 public:
  // Loads the steps that are in registers. `rows` is the first row in shared memory.
  FLASHSMITH_DEVICE void load(ptx::shared_address rows) {
    constexpr int kRowBytes = Traits::Q_tile.row_bytes;
    const int lane = ptx::thread_index() % kWarpSize;
    const int row = ptx::thread_index() % kWarpgroupSize / kWarpSize * kWarpRows + lane % 16;
    const int permutation = chunk_permutation<kRowBytes>(row);
    rows_ = rows;
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
      if (!is_in_registers(step)) continue;
      const int chunk = step % (kRowBytes / kWgmmaKBytes) * 2 + lane / 16;
      ptx::ldmatrix_x4<false>(
          fragments_[fragment(step)],
          rows + box_of_step<Traits::Q_tile>(step) + row * kRowBytes + (chunk ^ permutation) * 16);
    }
  }

  template <int kElements>
  FLASHSMITH_DEVICE void multiply(float (&S)[kElements], int step, ptx::MatrixDescriptor K) {
    using score_t = typename Traits::score_t;
    constexpr int kKeys = 2 * kElements;
    if (is_in_registers(step)) {
      ptx::wgmma_registers<score_t, kKeys, ptx::Major::k>(S, fragments_[fragment(step)], K,
                                                          step > 0);
    } else {
      const ptx::MatrixDescriptor Q =
          ptx::advance(ptx::k_major_descriptor(rows_, Traits::Q_tile.swizzle),
                       place_of_step<Traits::Q_tile>(step));
      ptx::wgmma_shared<score_t, kKeys, ptx::Major::k, ptx::Major::k>(S, Q, K, step > 0);
    }
  }
};

// Issues S = Q K^T as a separate group. `K` is the block in shared memory, of which S has the first
// keys or all.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void issue_QK(float (&S)[kElements], QOperand<Traits> &Q, ptx::shared_address K) {
  const ptx::MatrixDescriptor first = ptx::k_major_descriptor(K, Traits::K_tile.swizzle);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::QK_steps; step++) {
    Q.multiply(S, step, ptx::advance(first, place_of_step<Traits::K_tile>(step)));
  }
  ptx::wgmma_commit_group();
}

// Packs P as the operand of P V; with e4m3, in the order in which V is transposed (transposer.cuh).
template <typename Traits, int kSteps, int kElements>
FLASHSMITH_DEVICE void pack_weights(uint32_t (&P)[kSteps][4], const float (&S)[kElements]) {
  if constexpr (Traits::fp8_values) {
    pack_operand_e4m3(P, S);
  } else {
    pack_operand<typename Traits::value_t>(P, S);
  }
}

// Issues O += P V, or O = P V, as a separate group. `V` is the block in shared memory, transposed
// if it is e4m3; P has weights of its first keys or of all.
template <typename Traits, int kSteps>
FLASHSMITH_DEVICE void issue_PV(OAccumulator<Traits> &O, const uint32_t (&P)[kSteps][4],
                                ptx::shared_address V, bool accumulate) {
  constexpr bool kFp8 = Traits::fp8_values;
  const ptx::MatrixDescriptor first =
      kFp8 ? ptx::k_major_descriptor(V, Traits::transposed_V_tile.swizzle)
           : ptx::mn_major_descriptor(V, Traits::V_tile.swizzle, Traits::V_tile.box_bytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; step++) {
    const int place = kFp8 ? place_of_step<Traits::transposed_V_tile>(step)
                           : step * kWgmmaK * Traits::V_tile.row_bytes;
    ptx::wgmma_registers<typename Traits::weight_t, Traits::d_head,
                         kFp8 ? ptx::Major::k : ptx::Major::mn>(
        O, P[step], ptx::advance(first, place), accumulate || step > 0);
  }
  ptx::wgmma_commit_group();
}

}  // namespace flashsmith::sm90
