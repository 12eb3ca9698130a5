#include "host/module.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

#include <utility>

namespace flashsmith {
namespace {

// A shared object with emulated kernels. One that is refused is closed, because the loader knows
// files by their paths and would return the same code for a file that replaces it.
class SharedObject final : public Module {
  std::string path_;
  void *handle_;

 public:
  explicit SharedObject(const std::string &path)
      : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) TVM_FFI_THROW(RuntimeError) << dlerror();
  }
  ~SharedObject() override { dlclose(handle_); }
  SharedObject(const SharedObject &) = delete;
  SharedObject &operator=(const SharedObject &) = delete;

  const void *function(const std::string &symbol) const override {
    const void *found = dlsym(handle_, symbol.c_str());
    if (!found) TVM_FFI_THROW(RuntimeError) << path_ << " has no function " << symbol;
    return found;
  }
};

}  // namespace

std::unique_ptr<Module> load_shared_object(const std::string &path) {
  return std::make_unique<SharedObject>(path);
}

KernelFunctions::KernelFunctions(std::string path, const Module &module,
                                 const std::map<std::string, std::string> &symbols)
    : path_(std::move(path)) {
  for (const auto &[name, symbol] : symbols) handles_[name] = module.function(symbol);
}

KernelFunction KernelFunctions::at(const char *name) const {
  const KernelFunction found = find(name);
  if (!found) TVM_FFI_THROW(RuntimeError) << path_ << " has no function " << name;
  return found;
}

KernelFunction KernelFunctions::find(const char *name) const {
  const auto entry = handles_.find(name);
  return {name, entry == handles_.end() ? nullptr : entry->second};
}

}  // namespace flashsmith
