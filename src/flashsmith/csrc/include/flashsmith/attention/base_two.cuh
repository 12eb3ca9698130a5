// Logarithms: callers have natural ones, kernels compute in base 2.
#pragma once

#include "flashsmith/ptx/math.cuh"

namespace flashsmith {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// An exponent of e as one of 2. A finite one stays finite, however large.
FLASHSMITH_DEVICE float in_base_two(float exponent) { return ptx::mul_rz(exponent, kLog2e); }

}  // namespace flashsmith
