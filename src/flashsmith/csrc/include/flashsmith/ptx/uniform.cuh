// Values that are the same in all lanes of a warp. PTX ISA, Data Movement: shfl.sync.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// A value that all lanes of the warp have, in a way that the compiler knows to be uniform. What
// follows from it takes no registers of each lane.
FLASHSMITH_DEVICE int uniform(int value) {
#ifdef FLASHSMITH_EMULATOR
  return value;
#else
  return __shfl_sync(0xffffffff, value, 0);
#endif
}

}  // namespace flashsmith::ptx
