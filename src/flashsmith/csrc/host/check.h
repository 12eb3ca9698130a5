// Whether a kernel takes the caller's tensors; if not, a ValueError or TypeError says why.
#pragma once

#include "host/registry.h"
#include "host/tensors.h"

namespace flashsmith {

// Throws TypeError for a data type, ValueError for anything else that `kernel` cannot take.
void check_forward(const RegisteredKernel &kernel, const ForwardTensors &tensors);

}  // namespace flashsmith
