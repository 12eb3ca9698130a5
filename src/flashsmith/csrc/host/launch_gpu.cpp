#include "host/launch_gpu.h"

#include <tvm/ffi/error.h>

#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "host/driver.h"

namespace flashsmith {
namespace {

using driver::DeviceGuard;

// The functions of a cubin.
class Cubin final : public Module {
  std::string path_;
  driver::Library library_{};

 public:
  explicit Cubin(const std::string &path) : path_(path) {
    std::ostringstream code;
    code << std::ifstream(path, std::ios::binary).rdbuf();
    const driver::Result result = driver::functions().cuLibraryLoadData(
        &library_, code.str().c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    require(result);
  }

  const void *function(const std::string &symbol) const override {
    driver::Kernel kernel{};
    require(driver::functions().cuLibraryGetKernel(&kernel, library_, symbol.c_str()), &symbol);
    return kernel;
  }

 private:
  void require(driver::Result result, const std::string *symbol = nullptr) const {
    if (result == driver::kSuccess) return;
    const char *text = "unknown error";
    int version = 0;
    driver::functions().cuGetErrorString(result, &text);
    driver::functions().cuDriverGetVersion(&version);
    TVM_FFI_THROW(RuntimeError) << path_ << (symbol ? ", function " + *symbol : "") << ": " << text
                                << " (the driver is for CUDA " << version / 1000 << "."
                                << version % 1000 / 10 << ")";
  }
};

// Two events, and the time between them on the stream.
class Timer {
  driver::Event start_{}, stop_{};

 public:
  explicit Timer(driver::Stream stream) {
    FLASHSMITH_DRIVER(cuEventCreate(&start_, 0));
    FLASHSMITH_DRIVER(cuEventCreate(&stop_, 0));
    FLASHSMITH_DRIVER(cuEventRecord(start_, stream));
  }
  ~Timer() {
    if (start_) driver::functions().cuEventDestroy_v2(start_);
    if (stop_) driver::functions().cuEventDestroy_v2(stop_);
  }
  Timer(const Timer &) = delete;
  Timer &operator=(const Timer &) = delete;

  double stop(driver::Stream stream) {
    float milliseconds = 0;
    FLASHSMITH_DRIVER(cuEventRecord(stop_, stream));
    FLASHSMITH_DRIVER(cuEventSynchronize(stop_));
    FLASHSMITH_DRIVER(cuEventElapsedTime(&milliseconds, start_, stop_));
    return milliseconds;
  }
};

int attribute(driver::DeviceAttribute name, driver::Device device) {
  int value = 0;
  FLASHSMITH_DRIVER(cuDeviceGetAttribute(&value, name, device));
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
  driver::Device handle{};
  FLASHSMITH_DRIVER(cuDeviceGet(&handle, device));
  const DeviceFacts facts{attribute(driver::kComputeCapabilityMajor, handle),
                          attribute(driver::kComputeCapabilityMinor, handle),
                          attribute(driver::kMultiprocessorCount, handle)};
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
bool waits(driver::Kernel kernel, int device) {
  constexpr int kFirstThatWaits = 90;
  int version = 0;
  FLASHSMITH_DRIVER(cuKernelGetAttribute(&version, driver::kPtxVersion, kernel, device));
  return version >= kFirstThatWaits;
}

driver::Kernel kernel_of(const Launch &launch) {
  return static_cast<driver::Kernel>(const_cast<void *>(launch.function.handle));
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
  const driver::Kernel kernel = kernel_of(launch);
  const std::pair key{launch.function.handle, device};
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, Prepared{waits(kernel, device)}).first;
  Prepared &prepared = found->second;
  if (launch.shared_memory_bytes > prepared.shared_memory_bytes) {
    FLASHSMITH_DRIVER(cuKernelSetAttribute(driver::kMaxDynamicSharedSizeBytes,
                                           launch.shared_memory_bytes, kernel, device));
    prepared.shared_memory_bytes = launch.shared_memory_bytes;
  }
  return prepared;
}

void launch_one(const Launch &launch, const KernelArguments &arguments, driver::Stream stream) {
  driver::LaunchAttribute attributes[2] = {};
  unsigned n_attributes = 0;
  if (launch.cluster > 1) {
    driver::LaunchAttribute &cluster = attributes[n_attributes++];
    cluster.id = driver::kClusterDimension;
    cluster.value.cluster = {launch.cluster, 1, 1};
  }
  if (launch.overlaps) {
    driver::LaunchAttribute &overlaps = attributes[n_attributes++];
    overlaps.id = driver::kProgrammaticStreamSerialization;
    overlaps.value.programmatic_stream_serialization = 1;
  }
  const driver::LaunchConfig config{
      .grid_x = launch.grid.x,
      .grid_y = launch.grid.y,
      .grid_z = launch.grid.z,
      .block_x = launch.threads,
      .block_y = 1,
      .block_z = 1,
      .shared_memory_bytes = static_cast<unsigned>(launch.shared_memory_bytes),
      .stream = stream,
      .attributes = attributes,
      .n_attributes = n_attributes};
  void *parameters[] = {const_cast<void *>(arguments.get())};
  FLASHSMITH_DRIVER(cuLaunchKernelEx(&config, kernel_of(launch), parameters, nullptr));
}

}  // namespace

std::unique_ptr<Module> load_cubin(const std::string &path) {
  return std::make_unique<Cubin>(path);
}

namespace gpu {

int num_sms(int device) { return facts_of(device).num_sms; }

bool is_capturing(int device, void *stream) {
  const DeviceGuard guard(device);
  driver::CaptureStatus status{};
  // The default stream cannot tell while another one is being captured.
  const driver::Result result =
      driver::functions().cuStreamIsCapturing(static_cast<driver::Stream>(stream), &status);
  return result != driver::kSuccess || status != driver::kCaptureStatusNone;
}

void prepare(const FamilyGpus &gpus, Plan &plan, int device) {
  check_capability(gpus, device);
  const DeviceGuard guard(device);
  for (Launch &launch : plan.launches) {
    const Prepared prepared = prepare_function(launch, device);
    launch.overlaps = launch.overlaps && prepared.waits;
  }
}

double launch(const Plan &plan, const KernelArguments &arguments, int device, void *stream,
              bool timed) {
  const DeviceGuard guard(device);
  const auto queue = static_cast<driver::Stream>(stream);
  std::optional<Timer> timer;
  if (timed) timer.emplace(queue);
  for (const Launch &each : plan.launches) launch_one(each, arguments, queue);
  return timer ? timer->stop(queue) : 0;
}

}  // namespace gpu
}  // namespace flashsmith
