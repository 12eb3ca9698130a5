// The arithmetic of warp-level matrix instructions, without warps.
#pragma once

#include <cstdint>

#include "emulator/device.h"

namespace flashsmith::emulator {

// A lane's registers, as the instruction takes them.
struct MmaArguments {
  float *c;           // 4
  const uint32_t *a;  // 4
  const uint32_t *b[2];
};

void multiply_m16n8k16(MmaArguments *const *lanes, MmaType type);  // of the 32 lanes

}  // namespace flashsmith::emulator
