// The types by which the generated flash_kernels.cuh describes families and their kernels.
#pragma once

#include "flashsmith/params.h"

namespace flashsmith {

// The GPUs that have a family's instructions, by compute capability.
struct FamilyGpus {
  const char *family;
  int major, minor;
  bool exact;  // only this one, no newer ones

  constexpr bool include(int gpu_major, int gpu_minor) const {
    if (exact) return gpu_major == major && gpu_minor == minor;
    return gpu_major > major || (gpu_major == major && gpu_minor >= minor);
  }
};

// An entry of the maps for a configuration and a variant (host/look_up.h).
template <typename Config, typename Function>
struct NamedKernel;

}  // namespace flashsmith
