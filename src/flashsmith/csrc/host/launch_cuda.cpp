#ifndef FLASHSMITH_EMULATOR

#include <cuda_runtime_api.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <map>
#include <mutex>
#include <utility>
#include <variant>

#include "host/arguments.h"
#include "host/capability.h"
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

// The launch goes to the tensors' device, whatever the caller's current one is.
class DeviceGuard {
  int previous_ = 0;

 public:
  explicit DeviceGuard(int device) {
    FLASHSMITH_CUDA(cudaGetDevice(&previous_));
    if (device != previous_) FLASHSMITH_CUDA(cudaSetDevice(device));
  }
  ~DeviceGuard() { cudaSetDevice(previous_); }
  DeviceGuard(const DeviceGuard &) = delete;
  DeviceGuard &operator=(const DeviceGuard &) = delete;
};

// Two events, for the time between them on the stream.
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

const char *needed_gpu(const FlashForwardKernelConfig &) {
  return "the kernels need 8.0 or newer (Ampere)";
}
const char *needed_gpu(const Sm90ForwardKernelConfig &) {
  return "the sm90 family runs on 9.0 alone (Hopper)";
}

template <typename Config>
void check_capability(const Config &config, int device, int major, int minor) {
  if (!runs_on(config, major, minor)) {
    TVM_FFI_THROW(DeviceError) << "GPU " << device << " has compute capability " << major << "."
                               << minor << "; " << needed_gpu(config);
  }
}

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  FLASHSMITH_CUDA(cudaDeviceGetAttribute(&value, name, device));
  return value;
}

// Does what a kernel needs once on each device, before its first launch. Returns the device's
// multiprocessors.
template <typename Config>
int prepare(const void *kernel, const Config &config, int device) {
  static std::mutex mutex;
  static std::map<std::pair<const void *, int>, int> prepared;
  const std::lock_guard lock(mutex);
  const auto found = prepared.find({kernel, device});
  if (found != prepared.end()) return found->second;

  check_capability(config, device, attribute(cudaDevAttrComputeCapabilityMajor, device),
                   attribute(cudaDevAttrComputeCapabilityMinor, device));
  constexpr int kDefaultLimitBytes = 48 << 10;
  if (shared_memory_bytes(config) > kDefaultLimitBytes) {
    FLASHSMITH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         shared_memory_bytes(config)));
  }
  return prepared[{kernel, device}] = attribute(cudaDevAttrMultiProcessorCount, device);
}

cudaError_t launch_kernel(const void *kernel, const FlashForwardKernelConfig &,
                          const cudaLaunchConfig_t &launch, void **parameters) {
  return cudaLaunchKernel(kernel, launch.gridDim, launch.blockDim, parameters,
                          launch.dynamicSmemBytes, launch.stream);
}

cudaError_t launch_kernel(const void *kernel, const Sm90ForwardKernelConfig &config,
                          cudaLaunchConfig_t launch, void **parameters) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(config.cluster_size), 1, 1};
  launch.attrs = &cluster;
  launch.numAttrs = config.cluster_size > 1 ? 1 : 0;
  return cudaLaunchKernelExC(&launch, kernel, parameters);
}

template <typename Kernel>
double launch(const Kernel &registered, const ForwardTensors &tensors, double softmax_scale,
              bool timed) {
  const DLDevice device = tensors.q.device();
  const auto &config = registered.config;
  const auto *kernel = reinterpret_cast<const void *>(registered.function);
  const DeviceGuard guard(device.device_id);
  const int multiprocessors = prepare(kernel, config, device.device_id);

  const auto stream =
      static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  auto args = forward_args(config, tensors, softmax_scale);
  void *parameters[] = {&args};
  const Grid grid = forward_grid(config, tensors, multiprocessors);
  cudaLaunchConfig_t settings{};
  settings.gridDim = dim3(grid.x, grid.y, grid.z);
  settings.blockDim = dim3(threads_per_block(config));
  settings.dynamicSmemBytes = shared_memory_bytes(config);
  settings.stream = stream;
  const auto run = [&] { FLASHSMITH_CUDA(launch_kernel(kernel, config, settings, parameters)); };
  if (!timed) {
    run();
    return 0;
  }
  Timer timer(stream);
  run();
  return timer.stop(stream);
}

}  // namespace

double launch_forward(const RegisteredKernel &registered, const ForwardTensors &tensors,
                      double softmax_scale, bool timed) {
  if (tensors.q.device().device_type != kDLCUDA) {
    TVM_FFI_THROW(ValueError) << "q is not on a GPU, but the library was compiled for one";
  }
  return std::visit(
      [&](const auto &kernel) { return launch(kernel, tensors, softmax_scale, timed); },
      registered.kernel);
}

}  // namespace flashsmith

#endif
