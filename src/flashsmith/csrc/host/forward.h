// The operation `forward`: check, plan, launch.
#pragma once

#include "host/forward_kernel.h"

namespace flashsmith {

// What a call does. Throws ValueError or TypeError for shapes, dtypes and devices that the kernel
// does not take; memory is not looked at.
Plan plan_forward(const ForwardKernel &kernel, const ForwardTensors &tensors,
                  const ForwardNumbers &numbers);

// Throws ValueError or TypeError for tensors that the kernel does not take, DeviceError for a GPU.
// Returns milliseconds between two events around the launches if `timed`, else 0.
double run_forward(int64_t handle, const ForwardTensors &tensors, const ForwardNumbers &numbers,
                   bool timed);

}  // namespace flashsmith
