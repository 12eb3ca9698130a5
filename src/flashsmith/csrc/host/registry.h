// The kernels compiled into this library: the generated maps, as the rest of the host sees them.
// registry.cpp alone reads these, and is compiled again for every set of kernels, so that it and
// this header include no more of the host, or of the standard library, than they need.
#pragma once

#include <span>
#include <string_view>

#include "host/from_fields.h"
#include "host/named_kernel.h"

namespace flashsmith {

struct KernelMap;
struct FoundKernel;  // owns a kernel, or is empty (host/look_up.h)

// Returns the kernel that a map has for a configuration, if the map is of variant `wanted`; else
// empty. `Named` is the NamedKernel of a family, which instantiates this (host/look_up.h). `name`
// is only for the kernel's messages. Throws ValueError for fields that do not fit the map's struct.
template <typename Named>
FoundKernel find_in(const KernelMap &map, std::string_view name, Fields config,
                    const Variant &wanted);

// The map of one family and variant: std::map<Config, Function>.
struct KernelMap {
  std::string_view type;  // the type of the keys
  FamilyGpus gpus;
  Variant variant;
  const void *kernels;
  const void *schedules;  // the map of the kernels that list tiles; null: there is none
  decltype(find_in<void>) *find;
  // Returns whether one of the two maps has a Config, and copies its Function.
  bool (*look_up)(const void *map, const void *config, void *function);
};

std::span<const KernelMap> kernel_maps();

}  // namespace flashsmith
