// A kernel of any operation and family, as checks and launches see it.
#pragma once

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <string>

#include "flashsmith/params.h"
#include "host/args/argument.h"
#include "host/family_gpus.h"
#include "host/module.h"

namespace flashsmith {

// A kernel of a family, as it was compiled.
template <typename Config>
struct CompiledKernel {
  std::string name;  // short form and variant, as flashsmith.configs writes them
  Kind kind;
  FamilyGpus gpus;
  Config config;
  Variant variant;
  const KernelFunctions &functions;
};

// The part of a configuration that restricts the problems that it takes.
struct TileSizes {
  ScalarType dtype;
  int d_head, B_r, B_c;
};

using Operations = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Function>;

class Kernel {
 public:
  template <typename Config>
  explicit Kernel(const CompiledKernel<Config> &kernel)
      : name(kernel.name),
        kind(kernel.kind),
        gpus(kernel.gpus),
        variant(kernel.variant),
        tiles{kernel.config.dtype, kernel.config.d_head, kernel.config.B_r, kernel.config.B_c} {}
  virtual ~Kernel() = default;

  const std::string name;  // short form and variant
  const Kind kind;
  const FamilyGpus gpus;
  const Variant variant;
  const TileSizes tiles;

  // Returns the type of arguments whose type depends on the configuration.
  virtual ScalarType type_of(Element) const { return tiles.dtype; }

  // Returns the kernel's operations: functions of the arguments of a call (host/args/call.h).
  virtual Operations operations() const = 0;
};

}  // namespace flashsmith
