// A kernel's module: the compiled functions of one configuration and variant.
#pragma once

#include <map>
#include <memory>
#include <string>

namespace flashsmith {

enum class Kind { gpu, emulator };

class Module {
 public:
  virtual ~Module() = default;

  // Returns the handle of a function: a CUkernel, or a pointer on the emulator. Throws RuntimeError
  // for a symbol that the module lacks.
  virtual const void *function(const std::string &symbol) const = 0;
};

// Both load the module of a file. They throw RuntimeError, which names the file, for a file that is
// no module for this machine; `load_cubin` also throws DeviceError if there is no driver.
std::unique_ptr<Module> load_cubin(const std::string &path);
std::unique_ptr<Module> load_shared_object(const std::string &path);

// A function of a kernel.
struct KernelFunction {
  const char *name = "";         // its unqualified C++ name
  const void *handle = nullptr;  // null: the kernel has no such function

  explicit operator bool() const { return handle != nullptr; }
};

// The functions of a module by their C++ names.
class KernelFunctions {
  std::string path_;
  std::map<std::string, const void *> handles_;

 public:
  // `symbols`: C++ name -> symbol. Throws what Module::function throws.
  KernelFunctions(std::string path, const Module &module,
                  const std::map<std::string, std::string> &symbols);

  // Returns a function that every kernel of the family has. Throws RuntimeError if it is missing:
  // the module then is of another family.
  KernelFunction at(const char *name) const;

  // Returns a function that some kernels of the family have.
  KernelFunction find(const char *name) const;
};

}  // namespace flashsmith
