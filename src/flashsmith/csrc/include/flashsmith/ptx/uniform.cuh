// Values that are the same in all lanes of a warp. PTX ISA, Data Movement: shfl.sync.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// Returns a value that all lanes of the warp have, in a form that the compiler knows to be uniform.
// Values computed from it take no vector registers.
FLASHSMITH_DEVICE int uniform(int value) {
#ifdef FLASHSMITH_EMULATOR
  return value;
#else
  return __shfl_sync(0xffffffff, value, 0);
#endif
}

}  // namespace flashsmith::ptx
