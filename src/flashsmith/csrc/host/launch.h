// Runs one kernel over its grid: on the GPU in launch_cuda.cpp, on the CPU in launch_emulator.cpp.
#pragma once

#include "host/check.h"

namespace flashsmith {

// Launches on the device of the tensors and, on a GPU, on the current stream. With `timed` waits
// and returns the milliseconds between two events around the launch; else returns 0 at once.
double launch_forward(const RegisteredKernel &kernel, const ForwardTensors &tensors,
                      const ForwardKernelArgs &args, bool timed);

}  // namespace flashsmith
