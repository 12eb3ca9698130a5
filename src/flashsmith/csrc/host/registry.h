// The kernels compiled into this library. registry.cpp sees the generated map; nothing else does.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "flashsmith/flash_attention.cuh"
#include "flashsmith/sm90/arguments.cuh"

namespace flashsmith {

template <typename Config, typename Function>
struct FamilyKernel {
  Config config;
  Function function;
};

using Sm80Kernel = FamilyKernel<FlashForwardKernelConfig, forward_kernel_fn>;
using Sm90Kernel = FamilyKernel<Sm90ForwardKernelConfig, sm90_forward_kernel_fn>;

// The place of a family in this variant is its number for callers.
struct RegisteredKernel {
  std::variant<Sm80Kernel, Sm90Kernel> kernel;
  ForwardVariant variant;
};

// Every kernel of the library, in the order of (family, variant, config). A kernel's index is its
// handle.
const std::vector<RegisteredKernel> &registered_kernels();

// The handle of the kernel that the generated map has for a configuration and variant; none if the
// library lacks it.
std::optional<int64_t> find_kernel(const FlashForwardKernelConfig &config, ForwardVariant variant);
std::optional<int64_t> find_kernel(const Sm90ForwardKernelConfig &config, ForwardVariant variant);

}  // namespace flashsmith
