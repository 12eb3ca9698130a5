#include "host/look_up.h"

#include <tvm/ffi/error.h>

#include <utility>

namespace flashsmith {

std::unique_ptr<Kernel> find_kernel(const std::string &name, const std::string &type, Fields config,
                                    Fields variant) {
  const auto wanted = from_fields<Variant>("Variant", variant);
  bool is_known = false;
  for (const KernelMap &map : kernel_maps()) {
    if (map.type != type) continue;
    is_known = true;
    if (FoundKernel found = map.find(map, name, config, wanted); found.kernel) {
      return std::move(found.kernel);
    }
  }
  if (!is_known) {
    TVM_FFI_THROW(ValueError) << "type is " << type << "; expected the name of a configuration "
                              << "class of some family";
  }
  return nullptr;
}

}  // namespace flashsmith
