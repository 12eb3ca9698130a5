// The accumulators of O of a warpgroup's 64 rows.
//
// With two_level each block's P V is a separate sum: sums of FP8 products keep about 14 bits, which
// is enough for a block, but not for a sequence. The block's sum is added to O in FP32, by the
// multiplication that brings O to another reference.
#pragma once

#include "flashsmith/attention/softmax.cuh"
#include "flashsmith/sm90/gemm.cuh"

namespace flashsmith::sm90 {

// ptxas before CUDA 13 serialises every wgmma of a kernel (C7515) whose accumulators have no value
// before their first product, because it defines them while Q K^T is in flight. Newer versions need
// no zeros.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 13
inline constexpr bool kSumsStartAtZero = true;
#else
inline constexpr bool kSumsStartAtZero = false;
#endif

template <typename Traits>
class OutputSums {
  static constexpr bool kTwoLevel = Traits::two_level;

  OAccumulator<Traits> O_;
  bool started_ = false;
  // P V of one block, and the factor of O when P V is added, for two_level.
  OAccumulator<Traits> block_;
  float kept_[kHalves];

 public:
  FLASHSMITH_DEVICE const OAccumulator<Traits> &sums() const { return O_; }

  // Called before the first P V of a tile.
  FLASHSMITH_DEVICE void start(const Softmax<Traits> &softmax) {
    started_ = false;
    if constexpr (kTwoLevel || kSumsStartAtZero) {
#pragma unroll
      for (int i = 0; i < Traits::d_head / 2; i++) O_[i] = 0.f;
    }
    if constexpr (kTwoLevel) rescale(softmax);
  }

  // Issues P V as a separate group. `V` is the block in shared memory, of which P has the first
  // keys or all.
  template <int kSteps>
  FLASHSMITH_DEVICE void issue(const uint32_t (&P)[kSteps][4], ptx::shared_address V) {
    if constexpr (kTwoLevel) {
      issue_PV<Traits>(block_, P, V, false);
    } else {
      issue_PV<Traits>(O_, P, V, kSumsStartAtZero || started_);
    }
    started_ = true;
  }

  // Called when a wait has covered the product.
  FLASHSMITH_DEVICE void pin() { ptx::pin_registers(kTwoLevel ? block_ : O_); }
  FLASHSMITH_DEVICE void add_block() {
    if constexpr (kTwoLevel) {
#pragma unroll
      for (int i = 0; i < Traits::d_head / 2; i++) {
        O_[i] = fmaf(O_[i], kept_[half_of(i)], block_[i]);
      }
    }
  }

  // Brings O to the reference of the softmax's last step; with two_level, when the next block is
  // added.
  FLASHSMITH_DEVICE void rescale(const Softmax<Traits> &softmax) {
    if constexpr (kTwoLevel) {
      kept_[0] = softmax.factor(0);
      kept_[1] = softmax.factor(1);
    } else {
      softmax.rescale(O_);
    }
  }
};

}  // namespace flashsmith::sm90
