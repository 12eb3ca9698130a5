// Element-wise operations on a warp's scores and their gradients.
#pragma once

#include "flashsmith/ptx/math.cuh"
#include "flashsmith/sm80/backward_gemm.cuh"

namespace flashsmith::sm80 {

template <typename Traits, int kElements>
FLASHSMITH_DEVICE void exponentiate(float (&S)[Traits::m_tiles][kElements]) {
#pragma unroll
  for (auto &fragment : S) {
#pragma unroll
    for (float &element : fragment) element = ptx::exp2_approx(element);
  }
}

template <typename Traits, int kElements>
FLASHSMITH_DEVICE void multiply(float (&S)[Traits::m_tiles][kElements],
                                const float (&factor)[Traits::m_tiles][kElements]) {
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
    for (int i = 0; i < kElements; i++) S[m][i] *= factor[m][i];
  }
}

// Multiplies scores that are not hidden: the factor of a hidden score may be infinite.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void multiply_seen(float (&S)[Traits::m_tiles][kElements],
                                     const float (&factor)[Traits::m_tiles][kElements]) {
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
    for (int i = 0; i < kElements; i++) S[m][i] = S[m][i] == 0.f ? 0.f : S[m][i] * factor[m][i];
  }
}

}  // namespace flashsmith::sm80
