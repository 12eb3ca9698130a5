// The derivative of the user's score_mod. Generated units have a specialisation for the hash of
// each.
#pragma once

#include "flashsmith/attention/score.cuh"

namespace flashsmith {

// kIsOne: it is 1 everywhere. factor: of the score that score_mod is given.
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
