#include <tvm/ffi/error.h>

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "host/check/check.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

// tvm::ffi::DLDataTypeToString throws for complex types.
std::string name_of(DLDataType type) {
  if (type.code == kDLBool) return "bool";
  if (type.code == kDLFloat8_e4m3fn) return "float8_e4m3fn";
  const char *kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
  // Codes beyond these are float8 and smaller formats.
  return (type.code < std::size(kinds) ? kinds[type.code] : "float") + std::to_string(type.bits);
}

bool is_type(DLDataType type, ScalarType expected) {
  if (expected == ScalarType::Float8_e4m3fn) {
    return type.code == kDLFloat8_e4m3fn && type.bits == 8 && type.lanes == 1;
  }
  const int code = expected == ScalarType::Half ? kDLFloat : kDLBfloat;
  return type.code == code && type.bits == 16 && type.lanes == 1;
}

// Returns names like "q, k, v and o".
std::string strided_names(const Tensors &tensors) {
  std::vector<const char *> names;
  for (const Argument &argument : tensors.table) {
    if (has_rows(argument)) names.push_back(argument.name);
  }
  std::ostringstream text;
  for (size_t i = 0; i < names.size(); i++) {
    text << (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") << names[i];
  }
  return text.str();
}

}  // namespace

void check_dtype(const Tensors &tensors, const Argument &argument, const TensorView &t,
                 ScalarType expected) {
  const DLDataType type = t.dtype(), first = tensors.given[0]->dtype();
  if (argument.element == Element::any) return;
  if (argument.element == Element::float32) {
    if (type.code == kDLFloat && type.bits == 32 && type.lanes == 1) return;
    TVM_FFI_THROW(TypeError) << argument.name << " has dtype " << name_of(type)
                             << "; it must be float32";
  }
  if (argument.element == Element::int32) {
    if (type.code == kDLInt && type.bits == 32 && type.lanes == 1) return;
    TVM_FFI_THROW(TypeError) << argument.name << " has dtype " << name_of(type)
                             << "; it must be int32";
  }
  if (argument.element == Element::int64) {
    if (type.code == kDLInt && type.bits == 64 && type.lanes == 1) return;
    TVM_FFI_THROW(TypeError) << argument.name << " has dtype " << name_of(type)
                             << "; it must be int64";
  }
  if (expected == ScalarType::Float8_e4m3fn) {
    if (is_type(type, expected)) return;
    TVM_FFI_THROW(TypeError) << argument.name << " has dtype " << name_of(type)
                             << ", but the configuration is for one of float8_e4m3fn";
  }
  if (!is_type(type, ScalarType::Half) && !is_type(type, ScalarType::BFloat16)) {
    TVM_FFI_THROW(TypeError) << argument.name << " has dtype " << name_of(type)
                             << "; supported are float16 and bfloat16";
  }
  if (is_type(type, expected)) return;
  if (is_type(first, expected)) {
    TVM_FFI_THROW(TypeError) << argument.name << " has dtype " << name_of(type) << ", but "
                             << tensors.table[0].name << " has " << name_of(first) << "; "
                             << (has_rows(argument) ? strided_names(tensors) + " need" : "it needs")
                             << " the same dtype";
  }
  TVM_FFI_THROW(TypeError) << argument.name << " has dtype " << name_of(type)
                           << ", but the configuration is for "
                           << (expected == ScalarType::Half ? "float16" : "bfloat16")
                           << "; pass a configuration of the tensors' dtype";
}

}  // namespace flashsmith
