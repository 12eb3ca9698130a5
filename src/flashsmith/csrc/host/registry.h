// The kernels compiled into this library. registry.cpp sees the generated map; nothing else does.
#pragma once

#include <vector>

#include "flashsmith/flash_attention.cuh"

namespace flashsmith {

struct RegisteredKernel {
  FlashForwardKernelConfig config;
  ForwardVariant variant;
  forward_kernel_fn kernel;
};

// Every kernel of the library, in the order of (variant, config). A kernel's index is its handle.
const std::vector<RegisteredKernel> &registered_kernels();

}  // namespace flashsmith
