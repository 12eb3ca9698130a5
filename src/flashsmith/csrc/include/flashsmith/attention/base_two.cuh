// Callers have natural logarithms; kernels compute in base 2.
#pragma once

#include "flashsmith/ptx/math.cuh"

namespace flashsmith {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Converts an exponent of e to one of 2. A finite exponent stays finite, however large it is.
FLASHSMITH_DEVICE float in_base_two(float exponent) { return ptx::mul_rz(exponent, kLog2e); }

}  // namespace flashsmith
