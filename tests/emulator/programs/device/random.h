// Numbers for tests.
#pragma once

#include <cstdint>

namespace cases {

// Deterministic random numbers, which change only if the code does.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state_ >> 32);
  }
  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-23f - 1; }  // [-1, 1)

 private:
  uint64_t state_;
};

}  // namespace cases
