// The functions that a library exports through tvm-ffi. flashsmith.runtime calls them.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/args/append.h"
#include "host/args/backward.h"
#include "host/args/forward.h"
#include "host/launch_cache/launch_cache.h"
#include "host/launch_cache/spec.h"
#include "host/look_up.h"

namespace flashsmith {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Map;
using tvm::ffi::Optional;
using tvm::ffi::String;

String shape_of(const Argument &argument) {
  std::string shape;
  for (int d = 0; d < argument.rank(); d++) {
    shape += (d ? ", " : "") + std::string(name_of(argument.dims[d]));
  }
  return "(" + shape + ")";
}

std::span<const Argument> table_of(const String &operation) {
  if (operation == "forward") return kForwardArguments;
  if (operation == "backward") return kBackwardArguments;
  if (operation == "decode") return kDecodeArguments;
  if (operation == "append") return kAppendArguments;
  TVM_FFI_THROW(ValueError) << "operation is " << operation
                            << "; known are forward, backward, decode and append";
  __builtin_unreachable();
}

// Returns the tensors of an operation from its table: name, shape, dtype (an Element), use by the
// kernel, and whether it may be None.
Array<Map<String, String>> arguments(const String &operation) {
  Array<Map<String, String>> arguments;
  for (const Argument &argument : table_of(operation)) {
    arguments.push_back({{"name", argument.name},
                         {"shape", shape_of(argument)},
                         {"element", name_of(argument.element)},
                         {"use", name_of(argument.use)},
                         {"optional", argument.optional ? "yes" : "no"}});
  }
  return arguments;
}

// Returns the operations of the kernel of a configuration and a variant, or none if the library's
// maps lack it. The kernel is kept for good, because the functions point to it.
Optional<Operations> find(const String &name, const String &type, const Array<int64_t> &config,
                          const Array<int64_t> &variant) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<Kernel>> kept;
  const std::vector<int64_t> how(config.begin(), config.end());
  const std::vector<int64_t> what(variant.begin(), variant.end());
  std::unique_ptr<Kernel> kernel = find_kernel(name, type, how, what);
  if (!kernel) return std::nullopt;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(kernel));
  return kept.back()->operations();
}

// Returns the fields of a specification, in the order in which a launch cache takes them.
Array<String> spec_fields() {
  Array<String> fields;
  for (const char *name : kFieldNames) fields.push_back(name);
  return fields;
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch_cache, make_launch_cache);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(spec_fields, spec_fields);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(find_kernel, find);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(arguments, arguments);

}  // namespace flashsmith
