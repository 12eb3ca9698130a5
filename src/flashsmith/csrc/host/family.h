// The families of kernels: each file of host/families adds the one whose plans it makes.
#pragma once

#include <memory>
#include <string>

#include "host/from_fields.h"
#include "host/kernel.h"

namespace flashsmith {

// The properties of a kernel that Python loads.
struct KernelDescription {
  std::string name;  // short form and variant, for messages
  Kind kind;
  FamilyGpus gpus;
  Fields config, variant;
};

using MakeKernel = std::unique_ptr<Kernel> (*)(const std::string &type,
                                               const KernelDescription &description,
                                               const KernelFunctions &functions);

// Adds a family under the name of its configuration's struct, before `main`.
struct AddFamily {
  AddFamily(const char *type, MakeKernel make);
};

// Makes the kernel of a configuration, the struct called `type`, from its module's functions.
// Throws ValueError for a struct of no family and for fields that do not fit the struct, and
// RuntimeError for functions of another family.
std::unique_ptr<Kernel> make_kernel(const std::string &type, const KernelDescription &description,
                                    const KernelFunctions &functions);

template <typename Config, typename Made>
std::unique_ptr<Kernel> make_kernel_of(const std::string &type,
                                       const KernelDescription &description,
                                       const KernelFunctions &functions) {
  return std::make_unique<Made>(
      CompiledKernel<Config>{.name = description.name,
                             .kind = description.kind,
                             .gpus = description.gpus,
                             .config = from_fields<Config>(type, description.config),
                             .variant = from_fields<Variant>("Variant", description.variant),
                             .functions = functions});
}

}  // namespace flashsmith
