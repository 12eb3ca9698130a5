// The kernels compiled into this library: the generated maps, as the rest of the host sees them.
// registry.cpp alone reads these, and is compiled anew for every set of kernels, so that neither it
// nor this header includes more of the host, or of the standard library, than they need.
#pragma once

#include <span>
#include <string_view>

#include "host/from_fields.h"
#include "host/named_kernel.h"

namespace flashsmith {

struct KernelMap;
struct FoundKernel;  // owns a kernel, or is empty (host/look_up.h)

// The kernel that a map has for a configuration, if it is one of `wanted`; else empty. `Named` is
// the NamedKernel of a family, which instantiates this (host/look_up.h). `name` is for what the
// kernel says of calls. Throws ValueError for fields that are none of the map's struct.
template <typename Named>
FoundKernel find_in(const KernelMap &map, std::string_view name, Fields config,
                    const Variant &wanted);

// The map of one family and variant: std::map<Config, Function>.
struct KernelMap {
  std::string_view type;  // of the keys
  FamilyGpus gpus;
  Variant variant;
  const void *kernels;
  const void *schedules;  // the map of those that list their tiles; null: there is none
  decltype(find_in<void>) *find;
  // Whether one of the two maps has a Config; copies its Function.
  bool (*look_up)(const void *map, const void *config, void *function);
};

std::span<const KernelMap> kernel_maps();

}  // namespace flashsmith
