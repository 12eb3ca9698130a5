// Runs the launches of a plan: on the GPU in launch_cuda.cpp, on the CPU in launch_emulator.cpp.
#pragma once

#include "host/args/argument.h"
#include "host/named_kernel.h"
#include "host/plan.h"

namespace flashsmith {

// How many blocks a device runs side by side. Throws ValueError if this library is for another kind
// of device.
int num_sms_of(DLDevice device);

using Stream = void *;

// Where launches on a device go now; null on the emulator.
Stream current_stream(DLDevice device);

// Whether what goes to the stream becomes part of a graph, which may run at any time later.
bool is_capturing(Stream stream);

// What the launches of a plan need once on a device, which says whether they may overlap others.
// Throws DeviceError if it is not one for them.
void prepare(const FamilyGpus &gpus, Plan &plan, DLDevice device);

// For tensors that passed the checks, after `prepare`. Launches on their device and, on a GPU, on
// the current stream. With `timed` waits and returns the milliseconds between two events around the
// launches; else returns 0 at once.
double launch(const Plan &plan, const KernelArguments &arguments, const Tensors &tensors,
              bool timed);

}  // namespace flashsmith
