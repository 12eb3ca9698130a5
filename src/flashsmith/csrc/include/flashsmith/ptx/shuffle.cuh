// What one lane of a warp has, in others. PTX ISA, Data Movement: shfl.sync.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// shfl.sync.idx.b32: the value of another lane, which may be another one for each.
FLASHSMITH_DEVICE int shuffle_from(int value, int lane) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::shuffle_from(value, lane);
#else
  return __shfl_sync(0xffffffff, value, lane);
#endif
}

}  // namespace flashsmith::ptx
