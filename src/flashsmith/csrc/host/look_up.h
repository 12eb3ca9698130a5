// From the fields of a configuration to the kernel that this library has for it.
#pragma once

#include <memory>
#include <string>

#include "host/kernel.h"
#include "host/registry.h"

namespace flashsmith {

template <typename Config, typename Function>
struct NamedKernel {
  std::string name;  // as flashsmith.configs writes it: short form and variant
  Config config;
  Variant variant;
  Function function;
  Function schedule;  // of sequences with lengths of their own: lists their tiles; else null
};

struct FoundKernel {
  std::unique_ptr<Kernel> kernel;
};

// The kernel that the generated maps have for a configuration, the struct called `type`, and a
// variant, or null where they have none. `name` is for what the kernel says of calls: the fields
// alone decide which one it is.
//
// Throws ValueError for a struct of no family, and for fields that are none of the struct.
std::unique_ptr<Kernel> find_kernel(const std::string &name, const std::string &type, Fields config,
                                    Fields variant);

// Each file of host/families instantiates it, behind its own make_kernel.
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
