// Scales of single keys and values of 8 bits, which come with them in a stage.
//
// A score is multiplied with its key's scale before anything else is done to it. A weight P is
// multiplied with its value's scale when the row's sum has it, and then packed as FP16. P itself is
// in fp32, so it may be as large or as small as that product wants: a row's reference is the
// maximum of score + log2(scale), which keeps the products near 1 at most, whatever the scales are.
#pragma once

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith::sm80 {

// Those of the lane's columns of a fragment of scores.
template <int B_c>
class ColumnScales {
  static constexpr int kOwn = B_c / kLanesPerRow;
  // A scale counts as 2^-60 at least, zero too: P stays within fp32's range.
  static constexpr float kMinLog2 = -60.f;

  float scale_[kOwn];

 public:
  // Where a slice has that of a key: a lane's columns lie in a row.
  static FLASHSMITH_DEVICE int place(int key) {
    return key < B_c ? key % 8 / 2 * kOwn + key / 8 * 2 + key % 2 : key;
  }

  FLASHSMITH_DEVICE ColumnScales(ptx::shared_address scales, int lane) {
    constexpr int kWords = sizeof(ptx::Chunk) / sizeof(float);
    const ptx::shared_address own = scales + lane % kLanesPerRow * kOwn * sizeof(float);
#pragma unroll
    for (int i = 0; i < kOwn / kWords; i++) {
      ptx::Chunk chunk;
      ptx::load_shared_16(chunk, own + i * sizeof(chunk));
#pragma unroll
      for (int w = 0; w < kWords; w++) scale_[i * kWords + w] = ptx::bits_float(chunk.word[w]);
    }
  }

  FLASHSMITH_DEVICE void multiply(Fragment<B_c> &S) const {
#pragma unroll
    for (int i = 0; i < B_c / 2; i++) S[i] *= scale_[own(i)];
  }

  // Of half a fragment's scores in base 2, scale_log2 S: the largest, with its column's scale.
  FLASHSMITH_DEVICE float largest(const Fragment<B_c> &S, int half, float scale_log2) const {
    float maximum = -INFINITY;
#pragma unroll
    for (int i = 0; i < B_c / 2; i++) {
      if (half_of(i) != half) continue;
      const float log2 = fmaxf(ptx::log2_approx(scale_[own(i)]), kMinLog2);
      maximum = fmaxf(maximum, fmaf(S[i], scale_log2, log2));
    }
    return reduce_row(maximum, [](float a, float b) { return fmaxf(a, b); });
  }

 private:
  static FLASHSMITH_DEVICE constexpr int own(int element) { return element / 4 * 2 + element % 2; }
};

}  // namespace flashsmith::sm80
