// What the generated flash_kernels.cuh says of families and of their kernels.
#pragma once

#include "flashsmith/params.h"

namespace flashsmith {

// Which GPUs have a family's instructions, by compute capability.
struct FamilyGpus {
  const char *family;
  int major, minor;
  bool exact;  // these alone, not newer ones

  constexpr bool include(int gpu_major, int gpu_minor) const {
    if (exact) return gpu_major == major && gpu_minor == minor;
    return gpu_major > major || (gpu_major == major && gpu_minor >= minor);
  }
};

// What the maps hold for a configuration and a variant (host/look_up.h).
template <typename Config, typename Function>
struct NamedKernel;

}  // namespace flashsmith
