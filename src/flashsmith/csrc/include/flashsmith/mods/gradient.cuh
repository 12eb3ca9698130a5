// The derivative of the user's score_mod. Generated units specialise it for the hash of the
// functions.
#pragma once

#include "flashsmith/attention/score.cuh"

namespace flashsmith {

// `kIsOne`: the derivative is 1 everywhere. `factor` returns it at the score that score_mod takes.
template <int64_t kHash>
struct UserScoreGradient;

template <>
struct UserScoreGradient<0> {
  static constexpr bool kIsOne = true;

  static FLASHSMITH_DEVICE float factor(float, int, int, int, Key, const ModBuffers &) {
    return 1.f;
  }
};

}  // namespace flashsmith
