// What the generated flash_kernels.cuh says of families and of their kernels.
#pragma once

#include <string>

#include "flashsmith/params.h"

namespace flashsmith {

class Kernel;

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

// What the maps hold for a configuration and a variant.
template <typename Config, typename Function>
struct NamedKernel {
  std::string name;  // as flashsmith.configs writes it: short form and variant
  Config config;
  Variant variant;
  Function function;
  Function schedule;  // of sequences with lengths of their own: lists their tiles; else null
};

}  // namespace flashsmith
