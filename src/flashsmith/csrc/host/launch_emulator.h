// The functions of host/launch.h for CPU tensors, by the emulator.
#pragma once

#include "host/args/argument.h"
#include "host/plan.h"

namespace flashsmith::emulation {

int num_sms();

double launch(const Plan &plan, const KernelArguments &arguments, const Tensors &tensors,
              bool timed);

}  // namespace flashsmith::emulation
