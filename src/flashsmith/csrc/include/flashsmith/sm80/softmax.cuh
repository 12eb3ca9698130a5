// The online softmax of FlashAttention-2 (section 3.1, algorithm 1), in base 2: m and l are the
// running row maximum and row sum of the paper.
#pragma once

#include <cmath>

#include "flashsmith/ptx/math.cuh"
#include "flashsmith/sm80/gemm.cuh"

namespace flashsmith::sm80 {

// A row of an accumulator tile is spread over a quad of lanes.
template <typename Op>
FLASHSMITH_DEVICE float reduce_quad(float value, Op op) {
  value = op(value, ptx::shuffle_xor<2>(value));
  return op(value, ptx::shuffle_xor<1>(value));
}

// Statistics of the rows this lane holds: [m tile][row r or r + 8].
//
// optimized_softmax changes three things. The scale is folded into the exponential, one fused
// multiply-add an element. The row sums stay apart by lane until the end. And l and O are rescaled
// only when a row's maximum has grown by more than 2^kLazyLog2: until then P is taken relative to
// an older maximum, which cancels in O / l, and P <= 2^kLazyLog2 is far from overflow in fp16.
template <typename Traits>
struct Softmax {
  static constexpr float kLazyLog2 = 8.f;

  float scale_log2;             // softmax_scale * log2(e)
  float m[Traits::m_tiles][2];  // optimized: of S, maybe an older maximum; else: of S * scale_log2
  float l[Traits::m_tiles][2];  // optimized: of this lane's columns; else: of the row

  FLASHSMITH_DEVICE explicit Softmax(float scale) : scale_log2(scale) {
#pragma unroll
    for (int t = 0; t < Traits::m_tiles; t++)
#pragma unroll
      for (int r = 0; r < 2; r++) m[t][r] = -INFINITY, l[t][r] = 0.f;
  }

  // P = 2^(S * scale_log2 - m), in the input type, with m, l and O brought up to date.
  // kMasked: S may hold rows that are -inf throughout; their maximum must not become NaN.
  template <bool kMasked>
  FLASHSMITH_DEVICE void step(PFragments<Traits> &P, SAccumulators<Traits> &S,
                              OAccumulators<Traits> &O) {
    if constexpr (!Traits::optimized_softmax) scale_S(S);
    update_maximum<kMasked>(S, O);
#pragma unroll
    for (int t = 0; t < Traits::m_tiles; t++) {
      float offset[2], sum[2] = {0.f, 0.f};
#pragma unroll
      for (int r = 0; r < 2; r++) {
        offset[r] = kMasked && m[t][r] == -INFINITY ? 0.f : m[t][r];
        if constexpr (Traits::optimized_softmax) offset[r] *= scale_log2;
      }
#pragma unroll
      for (int k = 0; k < Traits::PV_fragments; k++) {
        exponentiate(P[k][t], S[t][2 * k], S[t][2 * k + 1], offset, sum);
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        l[t][r] += Traits::optimized_softmax ? sum[r] : quad_sum(sum[r]);
      }
    }
  }

  // O /= l, when all blocks are done.
  FLASHSMITH_DEVICE void finish(OAccumulators<Traits> &O) {
#pragma unroll
    for (int t = 0; t < Traits::m_tiles; t++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float sum = Traits::optimized_softmax ? quad_sum(l[t][r]) : l[t][r];
        const float inverse = 1.f / sum;
#pragma unroll
        for (int n = 0; n < Traits::O_n_tiles; n++) {
          O[t][n][2 * r] *= inverse;
          O[t][n][2 * r + 1] *= inverse;
        }
      }
    }
  }

 private:
  using STile = float[Traits::S_n_tiles][4];

  static FLASHSMITH_DEVICE float quad_sum(float value) {
    return reduce_quad(value, [](float a, float b) { return a + b; });
  }

  FLASHSMITH_DEVICE void scale_S(SAccumulators<Traits> &S) const {
#pragma unroll
    for (int t = 0; t < Traits::m_tiles; t++)
#pragma unroll
      for (int n = 0; n < Traits::S_n_tiles; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[t][n][i] *= scale_log2;
  }

  // Takes in the row maxima of S, and brings l and O to the new maxima where that is due.
  template <bool kMasked>
  FLASHSMITH_DEVICE void update_maximum(const SAccumulators<Traits> &S, OAccumulators<Traits> &O) {
    float m_new[Traits::m_tiles][2];
    bool due = !Traits::optimized_softmax;
#pragma unroll
    for (int t = 0; t < Traits::m_tiles; t++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        m_new[t][r] = fmaxf(m[t][r], row_max(S[t], r));
        due |= (m_new[t][r] - m[t][r]) * scale_log2 > kLazyLog2;
      }
    }
    if (Traits::optimized_softmax && !ptx::vote_any(due)) return;
#pragma unroll
    for (int t = 0; t < Traits::m_tiles; t++) {
#pragma unroll
      for (int r = 0; r < 2; r++) rescale<kMasked>(t, r, m_new[t][r], O);
    }
  }

  template <bool kMasked>
  FLASHSMITH_DEVICE void rescale(int t, int r, float m_new, OAccumulators<Traits> &O) {
    // A row of -inf so far: nothing to rescale, and -inf - -inf must not become NaN.
    const float growth = kMasked && m_new == -INFINITY ? 0.f : m_new - m[t][r];
    const float alpha =
        ptx::exp2_approx(Traits::optimized_softmax ? -growth * scale_log2 : -growth);
    m[t][r] = m_new;
    l[t][r] *= alpha;
#pragma unroll
    for (int n = 0; n < Traits::O_n_tiles; n++) {
      O[t][n][2 * r] *= alpha;
      O[t][n][2 * r + 1] *= alpha;
    }
  }

  static FLASHSMITH_DEVICE float row_max(const STile &S, int r) {
    float maximum = fmaxf(S[0][2 * r], S[0][2 * r + 1]);
#pragma unroll
    for (int n = 1; n < Traits::S_n_tiles; n++) {
      maximum = fmaxf(maximum, fmaxf(S[n][2 * r], S[n][2 * r + 1]));
    }
    return reduce_quad(maximum, [](float a, float b) { return fmaxf(a, b); });
  }

  // Optimised, the scale is folded into one fused multiply-add; else S came scaled.
  FLASHSMITH_DEVICE float exponential(float s, float offset) const {
    return ptx::exp2_approx(Traits::optimized_softmax ? fmaf(s, scale_log2, -offset) : s - offset);
  }

  // Two neighbouring n tiles of S become one operand fragment of P, and add to the row sums.
  FLASHSMITH_DEVICE void exponentiate(uint32_t (&P)[4], const float (&left)[4],
                                      const float (&right)[4], const float (&offset)[2],
                                      float (&sum)[2]) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float *pair = (i < 2 ? left : right) + i % 2 * 2;
      const int r = i % 2;
      const float p0 = exponential(pair[0], offset[r]), p1 = exponential(pair[1], offset[r]);
      sum[r] += p0 + p1;
      P[i] = ptx::pack<typename Traits::value_t>(p0, p1);
    }
  }
};

}  // namespace flashsmith::sm80
