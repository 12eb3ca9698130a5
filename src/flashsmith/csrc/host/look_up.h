// From the fields of a configuration to the kernel that this library has for it.
#pragma once

#include <memory>
#include <string>

#include "host/kernel.h"
#include "host/registry.h"

namespace flashsmith {

// The kernel that the generated maps have for a configuration, the struct called `type`, and a
// variant, or null where they have none. `name` is for what the kernel says of calls: the fields
// alone decide which one it is.
//
// Throws ValueError for a struct of no family, and for fields that are none of the struct.
std::unique_ptr<Kernel> find_kernel(const std::string &name, const std::string &type, Fields config,
                                    Fields variant);

// Each file of host/families instantiates it, behind its own make_kernel.
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
