// Per-token scales of FP8 keys and values, which arrive with them in a stage.
//
// A score is multiplied with its key's scale before any other change. A weight P is multiplied with
// its value's scale after it has been added to the row's sum, and then packed as FP16. P itself is
// in FP32, so it may be as large or as small as that product needs: a row's reference is the max of
// score + log2(scale), which keeps the products at most near 1, whatever the scales are.
#pragma once

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith::sm80 {

// The scales of the lane's columns of a fragment of scores.
template <int B_c>
class ColumnScales {
  static constexpr int kOwn = B_c / kLanesPerRow;
  // Scales below 2^-60, zero too, count as 2^-60, so that P stays within FP32's range.
  static constexpr float kMinLog2 = -60.f;

  float scale_[kOwn];

 public:
  // Returns the index of a key's scale in a slice, where a lane's columns are contiguous.
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

  // Returns a row's max of scale_log2 S + log2(scale of the column), over half a fragment of scores
  // S.
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
