#include "host/driver.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

namespace flashsmith::driver {
namespace {

constexpr const char *kLibrary = "libcuda.so.1";
constexpr const char *kNeeded = "a driver for CUDA 12.0 or newer is needed";

void *open_library() {
  void *library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) TVM_FFI_THROW(DeviceError) << dlerror() << "; " << kNeeded;
  return library;
}

// Throws the DeviceError of a driver without a function.
[[noreturn]] void refuse_driver(void *library, const char *function) {
  int version = 0;
  const auto get_version =
      reinterpret_cast<decltype(Driver::cuDriverGetVersion)>(dlsym(library, "cuDriverGetVersion"));
  if (get_version) get_version(&version);
  TVM_FFI_THROW(DeviceError) << kLibrary << " is for CUDA " << version / 1000 << "."
                             << version % 1000 / 10 << " and has no " << function << "; "
                             << kNeeded;
  __builtin_unreachable();
}

template <typename Pointer>
void find(void *library, const char *name, Pointer &function) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  if (!function) refuse_driver(library, name);
}

Driver find_functions() {
  void *const library = open_library();
  Driver found{};
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
  FLASHSMITH_FIND(cuLibraryUnload);
  FLASHSMITH_FIND(cuLibraryGetKernel);
  FLASHSMITH_FIND(cuKernelGetAttribute);
  FLASHSMITH_FIND(cuKernelSetAttribute);
  FLASHSMITH_FIND(cuLaunchKernelEx);
  FLASHSMITH_FIND(cuStreamIsCapturing);
  FLASHSMITH_FIND(cuEventCreate);
  FLASHSMITH_FIND(cuEventRecord);
  FLASHSMITH_FIND(cuEventSynchronize);
  FLASHSMITH_FIND(cuEventElapsedTime);
  FLASHSMITH_FIND(cuEventDestroy_v2);
  FLASHSMITH_FIND(cuTensorMapEncodeTiled);
#undef FLASHSMITH_FIND
  return found;
}

[[noreturn]] void fail(const Driver &driver, Result result, const char *call) {
  if (result == Result::no_binary_for_gpu) {
    TVM_FFI_THROW(DeviceError) << call << ": the kernel's module holds no code for the GPU's "
                               << "architecture; build for it with `flashsmith build --arch`";
  }
  TVM_FFI_THROW(DeviceError) << call << ": " << describe(driver, result) << " ("
                             << name_of(driver, result) << ")";
  __builtin_unreachable();
}

Driver initialised() {
  const Driver found = find_functions();
  if (const Result result = found.cuInit(0); result != Result::success) {
    fail(found, result, "cuInit");
  }
  return found;
}

}  // namespace

// A failure is not remembered: the next call tries again.
const Driver &driver() {
  static const Driver found = initialised();
  return found;
}

const char *describe(const Driver &driver, Result result) {
  const char *text = nullptr;
  driver.cuGetErrorString(result, &text);
  return text ? text : "unknown error";
}

const char *name_of(const Driver &driver, Result result) {
  const char *name = nullptr;
  driver.cuGetErrorName(result, &name);
  return name ? name : "unknown";
}

void fail(Result result, const char *call) { fail(driver(), result, call); }

}  // namespace flashsmith::driver
