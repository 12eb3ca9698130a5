// From tensors that passed check_forward to the arguments and the grid of a kernel.
#pragma once

#include "host/registry.h"
#include "host/tensors.h"

namespace flashsmith {

ForwardKernelArgs forward_args(const FlashForwardKernelConfig &config,
                               const ForwardTensors &tensors, double softmax_scale);
Sm90ForwardKernelArgs forward_args(const Sm90ForwardKernelConfig &config,
                                   const ForwardTensors &tensors, double softmax_scale);

struct Grid {
  unsigned x, y, z;
};

// The blocks of a launch on a GPU with so many multiprocessors.
Grid forward_grid(const FlashForwardKernelConfig &config, const ForwardTensors &tensors,
                  int multiprocessors);
Grid forward_grid(const Sm90ForwardKernelConfig &config, const ForwardTensors &tensors,
                  int multiprocessors);

}  // namespace flashsmith
