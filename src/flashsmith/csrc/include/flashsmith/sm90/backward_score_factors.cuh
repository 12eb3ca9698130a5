// The derivatives of a thread's scores with respect to the scaled score, which are kept until dP
// has arrived: two to a word, and nothing where they are 1.
#pragma once

#include "flashsmith/ptx/mma.cuh"

namespace flashsmith::sm90 {

template <typename Traits, int kElements>
class ScoreFactors {
  using factor_t = typename Traits::factor_t;
  static constexpr bool kAreKept = Traits::Score::kHasFactor;

  uint32_t words_[kAreKept ? kElements / 2 : 1];

 public:
  FLASHSMITH_DEVICE void keep(const float (&factors)[kElements]) {
    if constexpr (kAreKept) {
#pragma unroll
      for (int i = 0; i < kElements / 2; i++) {
        words_[i] = ptx::pack<factor_t>(factors[2 * i], factors[2 * i + 1]);
      }
    }
  }

  FLASHSMITH_DEVICE float of(int element) const {
    if constexpr (!kAreKept) return 1.f;
    return ptx::unpack<factor_t>(static_cast<uint16_t>(words_[element / 2] >> element % 2 * 16));
  }
};

}  // namespace flashsmith::sm90
