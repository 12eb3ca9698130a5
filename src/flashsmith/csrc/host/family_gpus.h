// The GPUs that a family runs on.
#pragma once

#include <string>

namespace flashsmith {

// The GPUs that have a family's instructions, by compute capability.
struct FamilyGpus {
  std::string family;
  int major, minor;
  bool exact;  // only this one, no newer ones

  bool include(int gpu_major, int gpu_minor) const {
    if (exact) return gpu_major == major && gpu_minor == minor;
    return gpu_major > major || (gpu_major == major && gpu_minor >= minor);
  }
};

}  // namespace flashsmith
