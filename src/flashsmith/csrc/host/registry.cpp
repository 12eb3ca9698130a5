#include "host/registry.h"

#include "flash_kernels.cuh"  // generated, in the library's build directory

namespace flashsmith {

const std::vector<RegisteredKernel> &registered_kernels() {
  static const std::vector<RegisteredKernel> kernels = [] {
    std::vector<RegisteredKernel> all;
    const auto add = [&](const auto &map, bool causal) {
      for (const auto &[config, function] : map) {
        all.push_back({FamilyKernel{config, function}, ForwardVariant{.causal = causal}});
      }
    };
    add(forward_kernels, false);
    add(forward_kernels_causal, true);
    add(hopper_forward_kernels, false);
    add(hopper_forward_kernels_causal, true);
    return all;
  }();
  return kernels;
}

}  // namespace flashsmith
