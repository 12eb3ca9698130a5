// The functions that the host library exports through tvm-ffi. flashsmith.runtime calls them.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/args/append.h"
#include "host/args/backward.h"
#include "host/args/forward.h"
#include "host/family.h"
#include "host/launch_cache/launch_cache.h"
#include "host/launch_cache/spec.h"

namespace flashsmith {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Map;
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

// Loads a kernel's module and returns the operations of the kernel. Both are kept for good, even
// when the process exits, because the operations point to them and a thread may be calling one.
//
// `kind`: "gpu" or "emulator". `gpu`: the compute capability of the oldest GPU of the family, and
// whether no other one has its instructions. `functions`: C++ name -> symbol.
//
// Throws ValueError for fields that do not fit the struct `type`, RuntimeError for a module that
// cannot be loaded or lacks a function, DeviceError if there is no driver.
Operations load_kernel(const String &kind, const String &name, const String &type,
                       const String &family, const Array<int64_t> &gpu,
                       const Array<int64_t> &config, const Array<int64_t> &variant,
                       const String &path, const Map<String, String> &functions) {
  struct Kept {
    std::unique_ptr<Module> module;
    std::unique_ptr<Kernel> kernel;
  };
  static std::mutex mutex;
  static auto &kept = *new std::vector<Kept>;
  const std::vector<int64_t> how(config.begin(), config.end());
  const std::vector<int64_t> what(variant.begin(), variant.end());
  std::map<std::string, std::string> symbols;
  for (const auto &[function, symbol] : functions) symbols[function] = symbol;
  Kept made{.module = kind == "gpu" ? load_cubin(path) : load_shared_object(path), .kernel = {}};
  const KernelDescription description{
      .name = name,
      .kind = kind == "gpu" ? Kind::gpu : Kind::emulator,
      .gpus = {family, static_cast<int>(gpu[0]), static_cast<int>(gpu[1]), gpu[2] != 0},
      .config = how,
      .variant = what};
  made.kernel =
      make_kernel(std::string(type), description, KernelFunctions(path, *made.module, symbols));
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(made));
  return kept.back().kernel->operations();
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
TVM_FFI_DLL_EXPORT_TYPED_FUNC(load_kernel, load_kernel);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(arguments, arguments);

}  // namespace flashsmith
