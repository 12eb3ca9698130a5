#include "host/family.h"

#include <tvm/ffi/error.h>

#include <map>
#include <string>

namespace flashsmith {
namespace {

// A function, because families of other files are added before the globals of this one exist.
std::map<std::string, MakeKernel> &families() {
  static std::map<std::string, MakeKernel> families;
  return families;
}

}  // namespace

AddFamily::AddFamily(const char *type, MakeKernel make) { families()[type] = make; }

std::unique_ptr<Kernel> make_kernel(const std::string &type, const KernelDescription &description,
                                    const KernelFunctions &functions) {
  const auto family = families().find(type);
  if (family == families().end()) {
    TVM_FFI_THROW(ValueError) << "type is " << type << "; expected the name of a configuration "
                              << "class of some family";
  }
  return family->second(type, description, functions);
}

}  // namespace flashsmith
