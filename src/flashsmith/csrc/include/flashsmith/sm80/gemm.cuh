// The two matrix products of a warp: S = Q K^T and O += P V, on mma.m16n8k16.
#pragma once

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/sm80/smem_tile.cuh"

namespace flashsmith::sm80 {

// Accumulators, by m tile of 16 rows of the warp.
template <typename Traits>
using SAccumulators = Fragment<Traits::B_c>[Traits::m_tiles];
template <typename Traits>
using OAccumulators = Fragment<Traits::d_head>[Traits::m_tiles];

// Operands: Q and K by [slot][tile][registers of one ldmatrix.x4], and P, in registers, by m tile.
template <typename Traits>
using QFragments = uint32_t[Traits::QSchedule::slots][Traits::m_tiles][4];
template <typename Traits>
using PFragments = uint32_t[Traits::m_tiles][Traits::PV_fragments][4];

// Returns the accumulators of n tile `n`, those of one mma.
template <int kElements>
FLASHSMITH_DEVICE float (&n_tile(float (&fragment)[kElements], int n))[4] {
  return *reinterpret_cast<float (*)[4]>(fragment + 4 * n);
}

// Loads fragment `k` of this warp's rows of Q. `Q` is the address of the first row.
template <typename Traits>
FLASHSMITH_DEVICE void load_Q_fragment(uint32_t (&fragment)[Traits::m_tiles][4],
                                       ptx::shared_address Q, int lane_offset, int k) {
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) {
    ptx::ldmatrix_x4<false>(fragment[m], Q + SmemTile<Traits>::fragment_offset(lane_offset, m, k));
  }
}

// Computes S = Q K^T for this warp's rows. Q, K: tile addresses (Q's at this warp's first row). If
// Q stays in registers, `q` holds it already.
template <typename Traits>
FLASHSMITH_DEVICE void gemm_QK(SAccumulators<Traits> &S, QFragments<Traits> &q,
                               ptx::shared_address Q, ptx::shared_address K, int lane_offset,
                               int K_lane_offset, int never_zero) {
  using QSchedule = typename Traits::QSchedule;
  using KSchedule = typename Traits::KSchedule;
  uint32_t k_fragments[KSchedule::slots][Traits::S_n_tiles / 2][4];
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++)
#pragma unroll
    for (float &score : S[m]) score = 0.f;

#pragma unroll
  for (int step = 0; step < Traits::QK_fragments; step++) {
    if constexpr (!Traits::Q_in_registers) {
      QSchedule::advance(step, never_zero, [&](int slot, int k) {
        load_Q_fragment<Traits>(q[slot], Q, lane_offset, k);
      });
    }
    KSchedule::advance(step, never_zero, [&](int slot, int k) {
#pragma unroll
      for (int n = 0; n < Traits::S_n_tiles / 2; n++) {
        ptx::ldmatrix_x4<false>(k_fragments[slot][n],
                                K + SmemTile<Traits>::fragment_offset(K_lane_offset, n, k));
      }
    });
    auto &a = q[step % QSchedule::slots];
    auto &b = k_fragments[step % KSchedule::slots];
#pragma unroll
    for (int n = 0; n < Traits::S_n_tiles; n++) {
#pragma unroll
      for (int m = 0; m < Traits::m_tiles; m++) {
        ptx::mma_m16n8k16<typename Traits::value_t>(n_tile(S[m], n), a[m], b[n / 2][n % 2 * 2],
                                                    b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
}

// Computes O += P V for this warp's rows. V: tile address.
template <typename Traits>
FLASHSMITH_DEVICE void gemm_PV(OAccumulators<Traits> &O, const PFragments<Traits> &P,
                               ptx::shared_address V, int lane_offset, int never_zero) {
  using VSchedule = typename Traits::VSchedule;
  uint32_t v_fragments[VSchedule::slots][Traits::O_n_tiles / 2][4];
#pragma unroll
  for (int step = 0; step < Traits::PV_fragments; step++) {
    VSchedule::advance(step, never_zero, [&](int slot, int k) {
#pragma unroll
      for (int n = 0; n < Traits::O_n_tiles / 2; n++) {
        ptx::ldmatrix_x4<true>(v_fragments[slot][n],
                               V + SmemTile<Traits>::fragment_offset(lane_offset, k, n));
      }
    });
    auto &b = v_fragments[step % VSchedule::slots];
#pragma unroll
    for (int n = 0; n < Traits::O_n_tiles; n++) {
#pragma unroll
      for (int m = 0; m < Traits::m_tiles; m++) {
        ptx::mma_m16n8k16<typename Traits::value_t>(n_tile(O[m], n), P[m][step],
                                                    b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
}

}  // namespace flashsmith::sm80
