// Turns the caller's tensors into kernel arguments, or says in a ValueError or TypeError why not.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include "host/registry.h"

namespace flashsmith {

// The tensors of one forward call, each (batch, seq_len, n_heads, d_head).
struct ForwardTensors {
  tvm::ffi::TensorView q, k, v, o;
};

// Throws TypeError for a data type, ValueError for anything else that `kernel` cannot take.
void check_forward(const RegisteredKernel &kernel, const ForwardTensors &tensors);

// For tensors that passed check_forward.
ForwardKernelArgs forward_args(const RegisteredKernel &kernel, const ForwardTensors &tensors,
                               double softmax_scale);

}  // namespace flashsmith
