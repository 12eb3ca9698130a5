// Runs one kernel over its grid: on the GPU in launch_cuda.cpp, on the CPU in launch_emulator.cpp.
#pragma once

#include "host/registry.h"
#include "host/tensors.h"

namespace flashsmith {

// For tensors that passed check_forward. Launches on their device and, on a GPU, on the current
// stream. With `timed` waits and returns the milliseconds between two events around the launch;
// else returns 0 at once.
double launch_forward(const RegisteredKernel &registered, const ForwardTensors &tensors,
                      double softmax_scale, bool timed);

}  // namespace flashsmith
