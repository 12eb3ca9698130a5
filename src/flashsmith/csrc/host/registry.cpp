#include "host/registry.h"

#include <tvm/ffi/error.h>

#include "flash_kernels.cuh"  // generated, in the library's build directory

namespace flashsmith {

const std::vector<std::unique_ptr<Kernel>> &registered_kernels() {
  static const std::vector<std::unique_ptr<Kernel>> kernels = [] {
    std::vector<std::unique_ptr<Kernel>> all;
    for_each_family([&](const FamilyGpus &gpus, const auto &family) {
      for (const auto &kernel : family) all.push_back(make_kernel(kernel, gpus));
    });
    return all;
  }();
  return kernels;
}

const Kernel &kernel_of(int64_t handle) {
  const auto &all = registered_kernels();
  if (handle < 0 || handle >= static_cast<int64_t>(all.size())) {
    TVM_FFI_THROW(ValueError) << "handle " << handle << " is not one of the " << all.size()
                              << " kernels of this library";
  }
  return *all[static_cast<size_t>(handle)];
}

}  // namespace flashsmith
