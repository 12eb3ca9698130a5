#include "host/registry.h"

#include <tvm/ffi/error.h>

#include <map>
#include <string_view>

#include "flash_kernels.cuh"  // generated, in the library's build directory

namespace flashsmith {

std::unique_ptr<Kernel> find_kernel(const std::string &name, const std::string &type, Fields config,
                                    Fields variant) {
  const auto wanted = from_fields<Variant>("Variant", variant);
  bool is_known = false;
  std::unique_ptr<Kernel> found;
  // Looks into the map of one family and variant, as `forward_kernels.find(config)` does.
  const auto look_up = [&]<typename Config, typename Function>(
                           std::string_view key_type, const FamilyGpus &gpus,
                           const Variant &computed, const std::map<Config, Function> &kernels,
                           const std::map<Config, Function> *schedules = nullptr) {
    if (key_type != type) return;
    is_known = true;
    const auto key = from_fields<Config>(type, config);
    if (computed != wanted) return;
    const auto kernel = kernels.find(key);
    if (kernel == kernels.end()) return;
    Function schedule{};
    if (schedules) {
      const auto entry = schedules->find(key);
      if (entry == schedules->end()) return;
      schedule = entry->second;
    }
    found = make_kernel(
        NamedKernel<Config, Function>{name, key, computed, kernel->second, schedule}, gpus);
  };
  for_each_map(look_up);
  if (!is_known) {
    TVM_FFI_THROW(ValueError) << "type is " << type << "; expected the name of a configuration "
                              << "class of some family";
  }
  return found;
}

}  // namespace flashsmith
