#include "host/registry.h"

#include <map>
#include <vector>

#include "flash_kernels.cuh"  // generated, in the library's build directory

namespace flashsmith {
namespace {

// Looks up a configuration like `forward_kernels.find(config)`.
template <typename Config, typename Function>
bool look_up(const void *map, const void *config, void *function) {
  const auto &kernels = *static_cast<const std::map<Config, Function> *>(map);
  const auto entry = kernels.find(*static_cast<const Config *>(config));
  if (entry == kernels.end()) return false;
  *static_cast<Function *>(function) = entry->second;
  return true;
}

struct Collect {
  std::vector<KernelMap> &maps;

  template <typename Config, typename Function>
  void operator()(std::string_view type, const FamilyGpus &gpus, const Variant &variant,
                  const std::map<Config, Function> &kernels,
                  const std::map<Config, Function> *schedules = nullptr) const {
    maps.push_back({.type = type,
                    .gpus = gpus,
                    .variant = variant,
                    .kernels = &kernels,
                    .schedules = schedules,
                    .find = find_in<NamedKernel<Config, Function>>,
                    .look_up = look_up<Config, Function>});
  }
};

std::vector<KernelMap> collect() {
  std::vector<KernelMap> maps;
  for_each_map(Collect{maps});
  return maps;
}

}  // namespace

std::span<const KernelMap> kernel_maps() {
  static const std::vector<KernelMap> maps = collect();
  return maps;
}

}  // namespace flashsmith
