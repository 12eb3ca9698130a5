// How the emulator runs the next launch of this thread, and what the last one showed.
#pragma once

#ifdef FLASHSMITH_EMULATOR

#include "emulator/launch.h"

namespace flashsmith {

struct Emulation {
  emulator::Options options;
  emulator::Report report;
};

Emulation &current_emulation();

}  // namespace flashsmith

#endif
