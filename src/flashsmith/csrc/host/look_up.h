// Looks up the kernel that this library has for the fields of a configuration.
#pragma once

#include <memory>
#include <string>

#include "host/kernel.h"
#include "host/registry.h"

namespace flashsmith {

// An entry of the maps for a configuration and a variant.
template <typename Config, typename Function>
struct NamedKernel {
  std::string name;  // short form and variant, as flashsmith.configs writes them
  Config config;
  Variant variant;
  Function function;
  Function schedule;  // lists the tiles of varlen sequences; else null
};

struct FoundKernel {
  std::unique_ptr<Kernel> kernel;
};

// Returns the kernel of a configuration, the struct called `type`, and a variant from the generated
// maps, or null if they have none. `name` is only for the kernel's messages: the fields alone
// choose the kernel.
//
// Throws ValueError for a struct of no family, and for fields that do not fit the struct.
std::unique_ptr<Kernel> find_kernel(const std::string &name, const std::string &type, Fields config,
                                    Fields variant);

// Each file of host/families instantiates this, after its own make_kernel.
template <typename Named>
FoundKernel find_in(const KernelMap &map, std::string_view name, Fields config,
                    const Variant &wanted) {
  Named kernel{.name = std::string(name),
               .config = from_fields<decltype(Named::config)>(map.type, config),
               .variant = map.variant,
               .function = {},
               .schedule = {}};
  if (map.variant != wanted) return {};
  const auto has = [&](const void *of, auto &function) {
    return map.look_up(of, &kernel.config, &function);
  };
  if (!has(map.kernels, kernel.function)) return {};
  if (map.schedules && !has(map.schedules, kernel.schedule)) return {};
  return {make_kernel(kernel, map.gpus)};
}

}  // namespace flashsmith
