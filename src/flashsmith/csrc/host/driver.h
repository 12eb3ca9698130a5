// The part of the CUDA driver's API that the host uses, declared here: the library is compiled
// without a CUDA toolkit, and opens libcuda.so.1 at the first use, on machines that have it.
// tests/host/test_driver.py compares the declarations with cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashsmith::driver {

using Device = int;
using Context = struct ContextHandle *;
using Stream = struct StreamHandle *;
using Event = struct EventHandle *;
using Library = struct LibraryHandle *;
using Kernel = struct KernelHandle *;

enum class Result : int {
  success = 0,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  invalid_context = 201,
  no_binary_for_gpu = 209,
  not_found = 500
};

enum class DeviceAttribute : int {
  multiprocessor_count = 16,
  compute_capability_major = 75,
  compute_capability_minor = 76
};

enum class FunctionAttribute : int { ptx_version = 5, max_dynamic_shared_size_bytes = 8 };

enum class CaptureStatus : int { none = 0 };

enum class LaunchAttributeId : int { cluster_dimension = 4, programmatic_stream_serialization = 6 };

struct LaunchAttribute {
  LaunchAttributeId id;
  char padding[4];
  union Value {
    alignas(8) char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int programmatic_stream_serialization_allowed;
  } value;
};

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_memory_bytes;
  Stream stream;
  LaunchAttribute *attributes;
  unsigned n_attributes;
};

struct alignas(128) TensorMap {
  uint64_t words[16];
};

enum class TensorMapDataType : int { uint8 = 0, float16 = 6, bfloat16 = 9 };
enum class TensorMapInterleave : int { none = 0 };
enum class TensorMapSwizzle : int { none = 0, bytes_32 = 1, bytes_64 = 2, bytes_128 = 3 };
enum class TensorMapPromotion : int { L2_256B = 3 };
enum class TensorMapFill : int { none = 0 };

// The functions, under the names of their symbols.
struct Driver {
  Result (*cuInit)(unsigned flags);
  Result (*cuDriverGetVersion)(int *version);
  Result (*cuGetErrorName)(Result result, const char **name);
  Result (*cuGetErrorString)(Result result, const char **text);

  Result (*cuDeviceGet)(Device *device, int ordinal);
  Result (*cuDeviceGetAttribute)(int *value, DeviceAttribute attribute, Device device);
  Result (*cuDevicePrimaryCtxRetain)(Context *context, Device device);
  Result (*cuCtxGetDevice)(Device *device);
  Result (*cuCtxPushCurrent_v2)(Context context);
  Result (*cuCtxPopCurrent_v2)(Context *context);

  Result (*cuLibraryLoadData)(Library *library, const void *code, int *jit_options,
                              void **jit_values, unsigned n_jit_options, int *options,
                              void **values, unsigned n_options);
  Result (*cuLibraryUnload)(Library library);
  Result (*cuLibraryGetKernel)(Kernel *kernel, Library library, const char *symbol);
  Result (*cuKernelGetAttribute)(int *value, FunctionAttribute attribute, Kernel kernel,
                                 Device device);
  Result (*cuKernelSetAttribute)(FunctionAttribute attribute, int value, Kernel kernel,
                                 Device device);
  Result (*cuLaunchKernelEx)(const LaunchConfig *config, Kernel kernel, void **parameters,
                             void **extra);

  Result (*cuStreamIsCapturing)(Stream stream, CaptureStatus *status);
  Result (*cuEventCreate)(Event *event, unsigned flags);
  Result (*cuEventRecord)(Event event, Stream stream);
  Result (*cuEventSynchronize)(Event event);
  Result (*cuEventElapsedTime)(float *milliseconds, Event start, Event stop);
  Result (*cuEventDestroy_v2)(Event event);

  Result (*cuTensorMapEncodeTiled)(TensorMap *map, TensorMapDataType type, uint32_t rank,
                                   void *base, const uint64_t *sizes, const uint64_t *strides,
                                   const uint32_t *box, const uint32_t *element_strides,
                                   TensorMapInterleave interleave, TensorMapSwizzle swizzle,
                                   TensorMapPromotion promotion, TensorMapFill fill);
};

// Returns the functions of the initialised driver. Throws DeviceError if there is no driver, if it
// is too old, or if it finds no GPU.
const Driver &driver();

// Returns what the driver says about a result: its description and its name.
const char *describe(const Driver &driver, Result result);
const char *name_of(const Driver &driver, Result result);

// Throws the DeviceError of a call that failed.
[[noreturn]] void fail(Result result, const char *call);

inline void check(Result result, const char *call) {
  if (result != Result::success) fail(result, call);
}

// Calls a function of the driver. Throws DeviceError if that fails.
#define FLASHSMITH_DRIVER(function, ...) \
  ::flashsmith::driver::check(::flashsmith::driver::driver().function(__VA_ARGS__), #function)

}  // namespace flashsmith::driver
