// The functions of the CUDA driver that the host calls, found when a process first uses a GPU, so
// that the library neither needs CUDA to be compiled nor a driver to be loaded. Names, values and
// layouts are those of cuda.h; a test compares them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashsmith::driver {

enum Result : int {
  kSuccess = 0,
  kNoBinaryForGpu = 209,
};

enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
};

enum FunctionAttribute : int {
  kPtxVersion = 5,
  kMaxDynamicSharedSizeBytes = 8,
};

enum CaptureStatus : int { kCaptureStatusNone = 0 };

enum LaunchAttributeId : int {
  kClusterDimension = 4,
  kProgrammaticStreamSerialization = 6,
};

struct LaunchAttribute {
  LaunchAttributeId id;
  char padding[8 - sizeof(LaunchAttributeId)];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int programmatic_stream_serialization;
  } value;
};

using Device = int;
using Context = struct ContextHandle *;
using Library = struct LibraryHandle *;
using Kernel = struct KernelHandle *;
using Stream = struct StreamHandle *;
using Event = struct EventHandle *;

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_memory_bytes;
  Stream stream;
  LaunchAttribute *attributes;
  unsigned n_attributes;
};

enum TensorMapDataType : int { kUint8 = 0, kFloat16 = 6, kBfloat16 = 9 };
enum TensorMapInterleave : int { kInterleaveNone = 0 };
enum TensorMapSwizzle : int { kSwizzle32B = 1, kSwizzle64B = 2, kSwizzle128B = 3 };
enum TensorMapL2Promotion : int { kPromoteL2_256B = 3 };
enum TensorMapFill : int { kFillZeros = 0 };

struct Functions {
  Result (*cuInit)(unsigned flags);
  Result (*cuDriverGetVersion)(int *version);
  Result (*cuGetErrorName)(Result error, const char **text);
  Result (*cuGetErrorString)(Result error, const char **text);
  Result (*cuDeviceGet)(Device *device, int ordinal);
  Result (*cuDeviceGetAttribute)(int *value, DeviceAttribute attribute, Device device);
  Result (*cuDevicePrimaryCtxRetain)(Context *context, Device device);
  Result (*cuCtxGetDevice)(Device *device);
  Result (*cuCtxPushCurrent_v2)(Context context);
  Result (*cuCtxPopCurrent_v2)(Context *context);
  Result (*cuLibraryLoadData)(Library *library, const void *code, void *jit_options,
                              void **jit_values, unsigned n_jit_options, void *library_options,
                              void **library_values, unsigned n_library_options);
  Result (*cuLibraryGetKernel)(Kernel *kernel, Library library, const char *name);
  Result (*cuKernelGetAttribute)(int *value, FunctionAttribute attribute, Kernel kernel,
                                 Device device);
  Result (*cuKernelSetAttribute)(FunctionAttribute attribute, int value, Kernel kernel,
                                 Device device);
  Result (*cuLaunchKernelEx)(const LaunchConfig *config, Kernel kernel, void **parameters,
                             void **extra);
  Result (*cuStreamIsCapturing)(Stream stream, CaptureStatus *status);
  Result (*cuEventCreate)(Event *event, unsigned flags);
  Result (*cuEventDestroy_v2)(Event event);
  Result (*cuEventRecord)(Event event, Stream stream);
  Result (*cuEventSynchronize)(Event event);
  Result (*cuEventElapsedTime)(float *milliseconds, Event start, Event stop);
  Result (*cuTensorMapEncodeTiled)(void *map, TensorMapDataType type, uint32_t rank, void *base,
                                   const uint64_t *sizes, const uint64_t *strides,
                                   const uint32_t *box, const uint32_t *element_strides,
                                   TensorMapInterleave interleave, TensorMapSwizzle swizzle,
                                   TensorMapL2Promotion promotion, TensorMapFill fill);
};

// Returns the functions of this machine's driver, which is initialised. Throws DeviceError if there
// is no driver, or one for a CUDA before 12.0.
const Functions &functions();

// Throws DeviceError if a call failed. `call`: its text.
void check(Result result, const char *call);

// Calls a function of the driver: FLASHSMITH_DRIVER(cuEventCreate(&event, 0)).
#define FLASHSMITH_DRIVER(call) \
  ::flashsmith::driver::check(::flashsmith::driver::functions().call, #call)

// Makes a device's context current while it lives, unless a context of the device is current. The
// driver takes most calls only from threads with a context, and new threads have none.
class DeviceGuard {
  bool is_pushed_ = false;

 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard &) = delete;
  DeviceGuard &operator=(const DeviceGuard &) = delete;
};

}  // namespace flashsmith::driver
