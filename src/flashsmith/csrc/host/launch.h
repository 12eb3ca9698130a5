// Runs the launches of a plan: on the GPU for CUDA tensors, on the emulator for CPU tensors.
#pragma once

#include "host/args/argument.h"
#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith {

// Returns the number of SMs of a device. Throws ValueError if kernels of this kind do not run on
// it.
int num_sms_of(Kind kind, DLDevice device);

using Stream = void *;

// Returns the current stream of a device; null on the emulator.
Stream current_stream(DLDevice device);

// Returns whether work on the stream becomes part of a graph, which may run at any later time.
bool is_capturing(DLDevice device, Stream stream);

// Does what the launches of a plan need once on a device, and sets whether they may overlap others.
// Throws DeviceError if the device cannot run them.
void prepare(const FamilyGpus &gpus, Plan &plan, DLDevice device);

// Launches the kernels of a plan, after `prepare`, for tensors that passed the checks, on their
// device and, on a GPU, on the current stream. With `timed` it waits and returns the milliseconds
// between two events around the launches; else it returns 0 at once.
double launch(const Plan &plan, const KernelArguments &arguments, const Tensors &tensors,
              bool timed);

}  // namespace flashsmith
