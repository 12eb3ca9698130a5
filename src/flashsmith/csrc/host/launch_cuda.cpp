#ifndef FLASHSMITH_EMULATOR

#include <cuda_runtime_api.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "host/launch.h"

namespace flashsmith {
namespace {

void check_cuda(cudaError_t error, const char *call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clear it: the next call must not report this one
  if (error == cudaErrorNoKernelImageForDevice) {
    TVM_FFI_THROW(DeviceError) << call << ": this library holds no code for the GPU's "
                               << "architecture; build for it with `flashsmith build --arch`";
  }
  TVM_FFI_THROW(DeviceError) << call << ": " << cudaGetErrorString(error) << " ("
                             << cudaGetErrorName(error) << ")";
}
#define FLASHSMITH_CUDA(call) check_cuda(call, #call)

// Makes the tensors' device current for a launch, whatever the caller's current device is.
class DeviceGuard {
  int device_, previous_ = 0;

 public:
  explicit DeviceGuard(int device) : device_(device) {
    FLASHSMITH_CUDA(cudaGetDevice(&previous_));
    if (device_ != previous_) FLASHSMITH_CUDA(cudaSetDevice(device_));
  }
  ~DeviceGuard() {
    if (device_ != previous_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard &) = delete;
  DeviceGuard &operator=(const DeviceGuard &) = delete;
};

// Two events, and the time between them on the stream.
class Timer {
  cudaEvent_t start_ = nullptr, stop_ = nullptr;

 public:
  explicit Timer(cudaStream_t stream) {
    FLASHSMITH_CUDA(cudaEventCreate(&start_));
    FLASHSMITH_CUDA(cudaEventCreate(&stop_));
    FLASHSMITH_CUDA(cudaEventRecord(start_, stream));
  }
  ~Timer() {
    if (start_) cudaEventDestroy(start_);
    if (stop_) cudaEventDestroy(stop_);
  }
  Timer(const Timer &) = delete;
  Timer &operator=(const Timer &) = delete;

  double stop(cudaStream_t stream) {
    float milliseconds = 0;
    FLASHSMITH_CUDA(cudaEventRecord(stop_, stream));
    FLASHSMITH_CUDA(cudaEventSynchronize(stop_));
    FLASHSMITH_CUDA(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return milliseconds;
  }
};

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  FLASHSMITH_CUDA(cudaDeviceGetAttribute(&value, name, device));
  return value;
}

// The properties that plans depend on. They are queried once, because every call of another size
// makes a plan.
struct DeviceFacts {
  int major, minor, num_sms;
};

DeviceFacts facts_of(int device) {
  static std::mutex mutex;
  static std::unordered_map<int, DeviceFacts> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(device); found != known.end()) return found->second;
  const DeviceFacts facts{attribute(cudaDevAttrComputeCapabilityMajor, device),
                          attribute(cudaDevAttrComputeCapabilityMinor, device),
                          attribute(cudaDevAttrMultiProcessorCount, device)};
  return known.emplace(device, facts).first->second;
}

void check_capability(const FamilyGpus &gpus, int device) {
  const auto [major, minor, num_sms] = facts_of(device);
  if (!gpus.include(major, minor)) {
    TVM_FFI_THROW(DeviceError) << "GPU " << device << " has compute capability " << major << "."
                               << minor << "; the " << gpus.family << " family runs on "
                               << gpus.major << "." << gpus.minor
                               << (gpus.exact ? " alone" : " or newer");
  }
}

// Returns whether a kernel has the instruction that waits for the previous launch. That depends on
// the architecture that it was compiled for, which may be older than the GPU's
// (ptx/dependent_launch.cuh).
bool waits(const void *function) {
  constexpr int kFirstThatWaits = 90;
  cudaFuncAttributes compiled{};
  FLASHSMITH_CUDA(cudaFuncGetAttributes(&compiled, function));
  return compiled.ptxVersion >= kFirstThatWaits;
}

// The state of a function that was prepared on a device.
struct Prepared {
  bool waits = false;
  int shared_memory_bytes = 48 << 10;  // that it may use; this many need no attribute
};

// Prepares a function on the current device, which has number `device`, once.
Prepared prepare_function(const Launch &launch, int device) {
  static std::mutex mutex;
  static std::map<std::pair<const void *, int>, Prepared> known;
  const std::lock_guard lock(mutex);
  const std::pair key{launch.function, device};
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, Prepared{waits(launch.function)}).first;
  Prepared &prepared = found->second;
  if (launch.shared_memory_bytes > prepared.shared_memory_bytes) {
    FLASHSMITH_CUDA(cudaFuncSetAttribute(
        launch.function, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_memory_bytes));
    prepared.shared_memory_bytes = launch.shared_memory_bytes;
  }
  return prepared;
}

void launch_one(const Launch &launch, const KernelArguments &arguments, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned n_attributes = 0;
  if (launch.cluster > 1) {
    cudaLaunchAttribute &cluster = attributes[n_attributes++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {launch.cluster, 1, 1};
  }
  if (launch.overlaps) {
    cudaLaunchAttribute &overlaps = attributes[n_attributes++];
    overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlaps.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t settings{};
  settings.gridDim = dim3(launch.grid.x, launch.grid.y, launch.grid.z);
  settings.blockDim = dim3(launch.threads);
  settings.dynamicSmemBytes = static_cast<size_t>(launch.shared_memory_bytes);
  settings.stream = stream;
  settings.attrs = attributes;
  settings.numAttrs = n_attributes;
  void *parameters[] = {const_cast<void *>(arguments.get())};
  FLASHSMITH_CUDA(cudaLaunchKernelExC(&settings, launch.function, parameters));
}

}  // namespace

int num_sms_of(DLDevice device) {
  if (device.device_type != kDLCUDA) {
    TVM_FFI_THROW(ValueError) << "q is not on a GPU, but the library was compiled for one";
  }
  return facts_of(device.device_id).num_sms;
}

Stream current_stream(DLDevice device) {
  return TVMFFIEnvGetStream(device.device_type, device.device_id);
}

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) == cudaSuccess) {
    return status != cudaStreamCaptureStatusNone;
  }
  cudaGetLastError();  // the default stream cannot tell while another one is being captured
  return true;
}

void prepare(const FamilyGpus &gpus, Plan &plan, DLDevice device) {
  check_capability(gpus, device.device_id);
  const DeviceGuard guard(device.device_id);
  for (Launch &launch : plan.launches) {
    const Prepared prepared = prepare_function(launch, device.device_id);
    launch.overlaps = launch.overlaps && prepared.waits;
  }
}

double launch(const Plan &plan, const KernelArguments &arguments, const Tensors &tensors,
              bool timed) {
  const DLDevice device = tensors.given[0]->device();
  const DeviceGuard guard(device.device_id);
  const auto stream = static_cast<cudaStream_t>(current_stream(device));
  std::optional<Timer> timer;
  if (timed) timer.emplace(stream);
  for (const Launch &each : plan.launches) launch_one(each, arguments, stream);
  return timer ? timer->stop(stream) : 0;
}

}  // namespace flashsmith

#endif
