// The kernels compiled into this library. registry.cpp sees the generated lists; nothing else does.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "host/kernel.h"

namespace flashsmith {

// Every kernel of the library. A kernel's index is its handle.
const std::vector<std::unique_ptr<Kernel>> &registered_kernels();

// Throws ValueError for a handle of none of them.
const Kernel &kernel_of(int64_t handle);

}  // namespace flashsmith
