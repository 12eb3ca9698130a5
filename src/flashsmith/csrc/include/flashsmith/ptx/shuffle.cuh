// Exchange of values between the lanes of a warp. PTX ISA, Data Movement: shfl.sync, redux.sync.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// shfl.sync.idx.b32: returns the value of another lane, which may differ between lanes.
FLASHSMITH_DEVICE int shuffle_from(int value, int lane) {
#ifdef FLASHSMITH_EMULATOR
  return emulator::shuffle_from(value, lane);
#else
  return __shfl_sync(0xffffffff, value, lane);
#endif
}

FLASHSMITH_DEVICE int64_t shuffle_from(int64_t value, int lane) {
  const auto low = static_cast<uint32_t>(shuffle_from(static_cast<int>(value), lane));
  return static_cast<int64_t>(shuffle_from(static_cast<int>(value >> 32), lane)) << 32 | low;
}

// redux.sync.add.s32 (sm_80): the sum over all lanes of the warp.
FLASHSMITH_DEVICE int sum_of_lanes(int value) {
#ifdef FLASHSMITH_EMULATOR
  int sum = 0;
  for (int lane = 0; lane < 32; lane++) sum += shuffle_from(value, lane);
  return sum;
#else
  return __reduce_add_sync(0xffffffff, value);
#endif
}

// redux.sync.max.s32 (sm_80): the max over all lanes of the warp.
FLASHSMITH_DEVICE int max_of_lanes(int value) {
#ifdef FLASHSMITH_EMULATOR
  int maximum = value;
  for (int lane = 0; lane < 32; lane++) {
    const int other = shuffle_from(value, lane);
    maximum = maximum > other ? maximum : other;
  }
  return maximum;
#else
  return __reduce_max_sync(0xffffffff, value);
#endif
}

}  // namespace flashsmith::ptx
