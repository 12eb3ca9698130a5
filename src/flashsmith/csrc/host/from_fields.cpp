#include "host/from_fields.h"

#include <tvm/ffi/error.h>

namespace flashsmith {

void refuse_field(std::string_view type, size_t index, int64_t value) {
  TVM_FFI_THROW(ValueError) << type << " came with " << value << " as field " << index
                            << ", which the C++ struct cannot hold";
  __builtin_unreachable();
}

void refuse_count(std::string_view type, size_t given, size_t expected) {
  TVM_FFI_THROW(ValueError) << type << " came with " << given << " fields; the C++ struct has "
                            << expected << ": the Python class of its name must have the same";
  __builtin_unreachable();
}

}  // namespace flashsmith
