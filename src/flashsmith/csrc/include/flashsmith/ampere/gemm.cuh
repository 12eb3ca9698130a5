// The two matrix products of a warp: S = Q K^T and O += P V, on mma.m16n8k16.
#pragma once

#include "flashsmith/ampere/tile.cuh"
#include "flashsmith/ptx/mma.cuh"

namespace flashsmith {

// Accumulators: [m tile][n tile][rows r, r + 8 times columns c, c + 1], r = lane / 4, c = lane % 4
// * 2.
template <typename Kernel>
using SAccumulators = float[Kernel::m_tiles][Kernel::S_n_tiles][4];
template <typename Kernel>
using OAccumulators = float[Kernel::m_tiles][Kernel::O_n_tiles][4];

// Operands: [slot][tile][registers of one ldmatrix.x4].
template <typename Kernel>
using QFragments = uint32_t[Kernel::QSchedule::slots][Kernel::m_tiles][4];
template <typename Kernel>
using PFragments = uint32_t[Kernel::PV_fragments][Kernel::m_tiles][4];

// Fragment `k` of this warp's rows of Q. `Q` is the address of the first of them.
template <typename Kernel>
FLASHSMITH_DEVICE void load_Q_fragment(uint32_t (&fragment)[Kernel::m_tiles][4],
                                       ptx::shared_address Q, int lane_offset, int k) {
#pragma unroll
  for (int m = 0; m < Kernel::m_tiles; m++) {
    ptx::ldmatrix_x4<false>(fragment[m], Q + Tile<Kernel>::fragment_offset(lane_offset, m, k));
  }
}

// S = Q K^T for this warp's rows. Q, K: tile addresses (Q's at this warp's first row). Where Q
// stays in registers, `q` holds it already.
template <typename Kernel>
FLASHSMITH_DEVICE void gemm_QK(SAccumulators<Kernel> &S, QFragments<Kernel> &q,
                               ptx::shared_address Q, ptx::shared_address K, int lane_offset,
                               int K_lane_offset, int never_zero) {
  using QSchedule = typename Kernel::QSchedule;
  using KSchedule = typename Kernel::KSchedule;
  uint32_t k_fragments[KSchedule::slots][Kernel::S_n_tiles / 2][4];
#pragma unroll
  for (int m = 0; m < Kernel::m_tiles; m++)
#pragma unroll
    for (int n = 0; n < Kernel::S_n_tiles; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) S[m][n][i] = 0.f;

#pragma unroll
  for (int step = 0; step < Kernel::QK_fragments; step++) {
    if constexpr (!Kernel::Q_in_registers) {
      QSchedule::advance(step, never_zero, [&](int slot, int k) {
        load_Q_fragment<Kernel>(q[slot], Q, lane_offset, k);
      });
    }
    KSchedule::advance(step, never_zero, [&](int slot, int k) {
#pragma unroll
      for (int n = 0; n < Kernel::S_n_tiles / 2; n++) {
        ptx::ldmatrix_x4<false>(k_fragments[slot][n],
                                K + Tile<Kernel>::fragment_offset(K_lane_offset, n, k));
      }
    });
    auto &a = q[step % QSchedule::slots];
    auto &b = k_fragments[step % KSchedule::slots];
#pragma unroll
    for (int n = 0; n < Kernel::S_n_tiles; n++) {
#pragma unroll
      for (int m = 0; m < Kernel::m_tiles; m++) {
        ptx::mma_m16n8k16<typename Kernel::value_t>(S[m][n], a[m], b[n / 2][n % 2 * 2],
                                                    b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
}

// O += P V for this warp's rows. V: tile address.
template <typename Kernel>
FLASHSMITH_DEVICE void gemm_PV(OAccumulators<Kernel> &O, const PFragments<Kernel> &P,
                               ptx::shared_address V, int lane_offset, int never_zero) {
  using VSchedule = typename Kernel::VSchedule;
  uint32_t v_fragments[VSchedule::slots][Kernel::O_n_tiles / 2][4];
#pragma unroll
  for (int step = 0; step < Kernel::PV_fragments; step++) {
    VSchedule::advance(step, never_zero, [&](int slot, int k) {
#pragma unroll
      for (int n = 0; n < Kernel::O_n_tiles / 2; n++) {
        ptx::ldmatrix_x4<true>(v_fragments[slot][n],
                               V + Tile<Kernel>::fragment_offset(lane_offset, k, n));
      }
    });
    auto &b = v_fragments[step % VSchedule::slots];
#pragma unroll
    for (int n = 0; n < Kernel::O_n_tiles; n++) {
#pragma unroll
      for (int m = 0; m < Kernel::m_tiles; m++) {
        ptx::mma_m16n8k16<typename Kernel::value_t>(O[m][n], P[step][m], b[n / 2][n % 2 * 2],
                                                    b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
}

}  // namespace flashsmith
