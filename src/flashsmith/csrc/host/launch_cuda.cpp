#ifndef FLASHSMITH_EMULATOR

#include <cuda_runtime_api.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <mutex>
#include <set>
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

// What a kernel needs once on each device, before its first launch.
void prepare(const void *kernel, const FlashForwardKernelConfig &config, int device) {
  static std::mutex mutex;
  static std::set<std::pair<const void *, int>> prepared;
  const std::lock_guard lock(mutex);
  if (prepared.contains({kernel, device})) return;

  int major = 0, minor = 0;
  FLASHSMITH_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  FLASHSMITH_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (major < 8) {
    TVM_FFI_THROW(DeviceError) << "GPU " << device << " has compute capability " << major << "."
                               << minor << "; the kernels need 8.0 or newer (Ampere)";
  }
  constexpr int kDefaultLimitBytes = 48 << 10;
  if (shared_memory_bytes(config) > kDefaultLimitBytes) {
    FLASHSMITH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         shared_memory_bytes(config)));
  }
  prepared.insert({kernel, device});
}

}  // namespace

double launch_forward(const RegisteredKernel &registered, const ForwardTensors &tensors,
                      const ForwardKernelArgs &args, bool timed) {
  const DLDevice device = tensors.q.device();
  if (device.device_type != kDLCUDA) {
    TVM_FFI_THROW(ValueError) << "q is not on a GPU, but the library was compiled for one";
  }
  const auto *kernel = reinterpret_cast<const void *>(registered.kernel);
  const DeviceGuard guard(device.device_id);
  prepare(kernel, registered.config, device.device_id);

  const auto stream =
      static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const dim3 grid(args.n_Q_blocks, args.n_heads, tensors.q.size(0));
  ForwardKernelArgs kernel_args = args;
  void *parameters[] = {&kernel_args};
  const auto launch = [&] {
    FLASHSMITH_CUDA(cudaLaunchKernel(kernel, grid, dim3(threads_per_block(registered.config)),
                                     parameters, shared_memory_bytes(registered.config), stream));
  };
  if (!timed) {
    launch();
    return 0;
  }
  Timer timer(stream);
  launch();
  return timer.stop(stream);
}

}  // namespace flashsmith

#endif
