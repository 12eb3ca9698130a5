// The emulated GPU and the options of the emulator for this thread's next launch, and the report of
// its last one.
#pragma once

#include "emulator/launch.h"

namespace flashsmith {

// The usual GPU has few SMs, so that persistent kernels have more tiles than blocks in small
// problems, too.
constexpr int kEmulatedSMs = 4;

struct Emulation {
  int num_sms = kEmulatedSMs;
  emulator::Options options;
  emulator::Report report;
};

Emulation &current_emulation();

}  // namespace flashsmith
