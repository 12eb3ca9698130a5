// Which GPUs the kernels of a family run on, by compute capability.
#pragma once

#include "flashsmith/flash_attention.cuh"

namespace flashsmith {

// Newer GPUs run what was compiled for older ones.
constexpr bool runs_on(const FlashForwardKernelConfig &, int major, int) { return major >= 8; }

// wgmma exists on Hopper alone.
constexpr bool runs_on(const Sm90ForwardKernelConfig &, int major, int minor) {
  return major == 9 && minor == 0;
}

}  // namespace flashsmith
