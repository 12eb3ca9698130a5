// The options of the emulator for the next launch of this thread, and the report of the last one.
#pragma once

#include "emulator/launch.h"

namespace flashsmith {

struct Emulation {
  emulator::Options options;
  emulator::Report report;
};

Emulation &current_emulation();

}  // namespace flashsmith
