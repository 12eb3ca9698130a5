#include "host/driver.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

#include <map>
#include <mutex>

namespace flashsmith::driver {
namespace {

constexpr const char *kLibrary = "libcuda.so.1";

template <typename Function>
void find(void *library, const char *name, Function &function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function) return;
  TVM_FFI_THROW(DeviceError) << "the NVIDIA driver has no " << name
                             << "; flashsmith needs a driver for CUDA 12.0 or newer";
}

Functions find_functions() {
  void *library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    TVM_FFI_THROW(DeviceError) << "no NVIDIA driver was found: " << dlerror()
                               << "; install one for CUDA 12.0 or newer, or pass CPU tensors for "
                                  "the emulator";
  }
  Functions found{};
#define FLASHSMITH_FIND(name) find(library, #name, found.name)
  FLASHSMITH_FIND(cuInit);
  FLASHSMITH_FIND(cuDriverGetVersion);
  FLASHSMITH_FIND(cuGetErrorName);
  FLASHSMITH_FIND(cuGetErrorString);
  FLASHSMITH_FIND(cuDeviceGet);
  FLASHSMITH_FIND(cuDeviceGetAttribute);
  FLASHSMITH_FIND(cuDevicePrimaryCtxRetain);
  FLASHSMITH_FIND(cuCtxGetDevice);
  FLASHSMITH_FIND(cuCtxPushCurrent_v2);
  FLASHSMITH_FIND(cuCtxPopCurrent_v2);
  FLASHSMITH_FIND(cuLibraryLoadData);
  FLASHSMITH_FIND(cuLibraryGetKernel);
  FLASHSMITH_FIND(cuKernelGetAttribute);
  FLASHSMITH_FIND(cuKernelSetAttribute);
  FLASHSMITH_FIND(cuLaunchKernelEx);
  FLASHSMITH_FIND(cuStreamIsCapturing);
  FLASHSMITH_FIND(cuEventCreate);
  FLASHSMITH_FIND(cuEventDestroy_v2);
  FLASHSMITH_FIND(cuEventRecord);
  FLASHSMITH_FIND(cuEventSynchronize);
  FLASHSMITH_FIND(cuEventElapsedTime);
  FLASHSMITH_FIND(cuTensorMapEncodeTiled);
#undef FLASHSMITH_FIND
  if (const Result result = found.cuInit(0); result != kSuccess) {
    const char *text = "unknown error";
    found.cuGetErrorString(result, &text);
    TVM_FFI_THROW(DeviceError) << "the NVIDIA driver cannot be used: " << text;
  }
  return found;
}

// Returns the context that the CUDA runtime uses on a device, too. It is retained for good.
Context primary_context(int device) {
  static std::mutex mutex;
  static std::map<int, Context> contexts;
  const std::lock_guard lock(mutex);
  if (const auto known = contexts.find(device); known != contexts.end()) return known->second;
  Device handle{};
  FLASHSMITH_DRIVER(cuDeviceGet(&handle, device));
  Context context{};
  FLASHSMITH_DRIVER(cuDevicePrimaryCtxRetain(&context, handle));
  return contexts.emplace(device, context).first->second;
}

}  // namespace

const Functions &functions() {
  static const Functions found = find_functions();
  return found;
}

void check(Result result, const char *call) {
  if (result == kSuccess) return;
  if (result == kNoBinaryForGpu) {
    TVM_FFI_THROW(DeviceError) << call << ": the kernel holds no code for the GPU's architecture; "
                               << "build for it with `flashsmith build --arch`";
  }
  const char *text = "unknown error", *name = "";
  functions().cuGetErrorString(result, &text);
  functions().cuGetErrorName(result, &name);
  TVM_FFI_THROW(DeviceError) << call << ": " << text << " (" << name << ")";
}

DeviceGuard::DeviceGuard(int device) {
  Device current{};
  // Devices have the same numbers as in the runtime.
  if (functions().cuCtxGetDevice(&current) == kSuccess && current == device) return;
  FLASHSMITH_DRIVER(cuCtxPushCurrent_v2(primary_context(device)));
  is_pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  Context popped{};
  if (is_pushed_) functions().cuCtxPopCurrent_v2(&popped);
}

}  // namespace flashsmith::driver
