// Looks up the kernel that this library has for the fields of a configuration.
#pragma once

#include <memory>
#include <string>

#include "host/kernel.h"
#include "host/registry.h"

namespace flashsmith {

// Returns the kernel of a configuration, the struct called `type`, and a variant from the generated
// maps, or null if they have none. `name` is only for the kernel's messages: the fields alone
// choose the kernel.
//
// Throws ValueError for a struct of no family, and for fields that do not fit the struct.
std::unique_ptr<Kernel> find_kernel(const std::string &name, const std::string &type, Fields config,
                                    Fields variant);

// Each file of host/families instantiates this, after its own make_kernel.
template <typename Named>
std::unique_ptr<Kernel> find_in(const KernelMap &map, const std::string &name, Fields config,
                                const Variant &wanted) {
  Named kernel{.name = name,
               .config = from_fields<decltype(Named::config)>(map.type, config),
               .variant = map.variant,
               .function = {},
               .schedule = {}};
  if (map.variant != wanted) return nullptr;
  const auto has = [&](const void *of, auto &function) {
    return map.look_up(of, &kernel.config, &function);
  };
  if (!has(map.kernels, kernel.function)) return nullptr;
  if (map.schedules && !has(map.schedules, kernel.schedule)) return nullptr;
  return make_kernel(kernel, map.gpus);
}

}  // namespace flashsmith
