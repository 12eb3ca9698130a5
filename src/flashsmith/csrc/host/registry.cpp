#include "host/registry.h"

#include "flash_kernels.cuh"  // generated, in the library's build directory

namespace flashsmith {

const std::vector<RegisteredKernel> &registered_kernels() {
  static const std::vector<RegisteredKernel> kernels = [] {
    std::vector<RegisteredKernel> all;
    for (const auto &[config, kernel] : forward_kernels) {
      all.push_back({config, ForwardVariant{.causal = false}, kernel});
    }
    for (const auto &[config, kernel] : forward_kernels_causal) {
      all.push_back({config, ForwardVariant{.causal = true}, kernel});
    }
    return all;
  }();
  return kernels;
}

}  // namespace flashsmith
