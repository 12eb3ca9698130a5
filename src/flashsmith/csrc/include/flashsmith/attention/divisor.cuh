// Divisions of numbers that are not negative. A division by a number that only the kernel knows
// takes twenty instructions; one by a Divisor, which the host has prepared, takes three.
#pragma once

#include "flashsmith/decode_params.h"
#include "flashsmith/ptx/platform.cuh"

namespace flashsmith {

FLASHSMITH_DEVICE int quotient(int value, int divisor) {
  return static_cast<int>(static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor));
}

FLASHSMITH_DEVICE int quotient(int value, const Divisor &divisor) {
  const uint64_t product = uint64_t{2 * static_cast<uint32_t>(value)} * divisor.multiplier;
  return static_cast<int>(static_cast<uint32_t>(product >> 32) >> divisor.shift);
}

FLASHSMITH_DEVICE int quotient_up(int value, int divisor) {
  return quotient(value + divisor - 1, divisor);
}
FLASHSMITH_DEVICE int quotient_up(int value, const Divisor &divisor) {
  return quotient(value + divisor.value - 1, divisor);
}

}  // namespace flashsmith
