// A kernel of any operation and family, as the registry and checks see it.
#pragma once

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <string>

#include "host/args/argument.h"
#include "host/named_kernel.h"

namespace flashsmith {

// The part of a configuration that restricts the problems that it takes.
struct TileSizes {
  ScalarType dtype;
  int d_head, B_r, B_c;
};

using Operations = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Function>;

class Kernel {
 public:
  template <typename Named>
  Kernel(const Named &kernel, const FamilyGpus &gpus)
      : name(kernel.name),
        gpus(gpus),
        variant(kernel.variant),
        tiles{kernel.config.dtype, kernel.config.d_head, kernel.config.B_r, kernel.config.B_c} {}
  virtual ~Kernel() = default;

  const std::string name;  // short form and variant
  const FamilyGpus gpus;
  const Variant variant;
  const TileSizes tiles;

  // Returns the type of arguments whose type depends on the configuration.
  virtual ScalarType type_of(Element) const { return tiles.dtype; }

  // Returns the kernel's operations: functions of the arguments of a call (host/args/call.h).
  virtual Operations operations() const = 0;
};

}  // namespace flashsmith
