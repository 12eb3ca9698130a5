// Services of a target, GPU or emulator, for the tests of the wrappers: memory that host and kernel
// share, tensor maps, launches. A kernel is a struct with a call operator and kThreads.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "device/random.h"
#include "flashsmith/ptx/platform.cuh"
#include "flashsmith/ptx/tensor_map.cuh"
#include "flashsmith/types.cuh"

#ifdef FLASHSMITH_EMULATOR
#include "emulator/launch.h"
#else
#include <cuda.h>
#include <cuda_runtime.h>
#endif

namespace wrappers {

using namespace flashsmith;
using namespace flashsmith::ptx;
using cases::Random;

// The number of comparisons, and the failures.
class Results {
 public:
  template <class... Arguments>
  void check(bool ok, const char *format, Arguments... arguments) {
    ++tested_;
    if (ok) return;
    char text[256];
    std::snprintf(text, sizeof text, format, arguments...);
    failed_.push_back(text);
  }
  int tested() const { return tested_; }
  void print() const {
    std::printf("{\"tested\": %d, \"failed\": [", tested_);
    for (size_t i = 0; i < failed_.size(); ++i) {
      std::printf("%s\"%s\"", i ? ",\n" : "", failed_[i].c_str());
    }
    std::puts("]}");
  }

 private:
  int tested_ = 0;
  std::vector<std::string> failed_;
};

struct Settings {
  int shared_bytes;
  int blocks = 1;
  int cluster = 1;  // blocks of a cluster
};

// A tensor of 16-bit elements, the contiguous dimension first; strides in elements.
struct TensorShape {
  std::vector<int64_t> sizes, strides;
  std::vector<int> box;
  Swizzle swizzle;
};

#ifdef FLASHSMITH_EMULATOR

template <class T>
using Buffer = std::vector<T>;

inline TensorMap make_map(void *base, const TensorShape &shape) {
  TensorMap map{};
  map.base = base;
  map.element_bytes = 2;
  map.rank = static_cast<uint32_t>(shape.sizes.size());
  for (size_t i = 0; i < shape.sizes.size(); ++i) {
    map.sizes[i] = static_cast<uint64_t>(shape.sizes[i]);
    map.strides[i] = static_cast<uint64_t>(shape.strides[i]) * 2;
    map.box[i] = static_cast<uint32_t>(shape.box[i]);
  }
  map.swizzle = shape.swizzle;
  return map;
}

// The kernel may access the buffers. Each launch draws another order of warps.
template <class Kernel, class... Buffers>
void run(const Kernel &kernel, const Settings &settings, Buffers &...buffers) {
  static uint64_t seed = 0;
  emulator::Launch launch;
  launch.kernel = "wrappers";
  launch.grid = {static_cast<unsigned>(settings.blocks), 1, 1};
  launch.threads = Kernel::kThreads;
  launch.shared_memory_bytes = static_cast<size_t>(settings.shared_bytes);
  launch.memory = {{buffers.data(), buffers.size() * sizeof(buffers[0]), "buffer", true}...};
  launch.body = [&] { kernel(); };
  launch.cluster = static_cast<unsigned>(settings.cluster);
  emulator::launch(launch, {.seed = ++seed, .workers = 1});
}

// The emulator sums in the order of k, so that bits are equal.
inline bool is_sum(float got, float expected, float) { return got == expected; }

// The accumulators of a wgmma hold a signalling NaN until its wait.
template <int kCount>
void expect_poison(const float (&registers)[kCount]) {
  for (float x : registers) {
    if (std::isnan(x)) continue;
    std::fprintf(stderr, "an accumulator shows %g before the wait\n", static_cast<double>(x));
    std::exit(1);
  }
}

#else

inline void check_cuda(cudaError_t error, const char *call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK_CUDA(call) check_cuda(call, #call)

template <class T>
struct ManagedAllocator {
  using value_type = T;
  ManagedAllocator() = default;
  template <class U>
  ManagedAllocator(const ManagedAllocator<U> &) {}
  T *allocate(size_t count) {
    void *memory = nullptr;
    CHECK_CUDA(cudaMallocManaged(&memory, count * sizeof(T)));
    return static_cast<T *>(memory);
  }
  void deallocate(T *memory, size_t) { cudaFree(memory); }
  bool operator==(const ManagedAllocator &) const = default;
};

template <class T>
using Buffer = std::vector<T, ManagedAllocator<T> >;

inline TensorMap make_map(void *base, const TensorShape &shape) {
  constexpr unsigned kMaxDimensions = 5, kSince = 12000;
  void *encode = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CHECK_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, kSince,
                                              cudaEnableDefault, &found));
  cuuint64_t sizes[kMaxDimensions], strides[kMaxDimensions];
  cuuint32_t box[kMaxDimensions], ones[kMaxDimensions];
  for (size_t i = 0; i < shape.sizes.size(); ++i) {
    sizes[i] = static_cast<cuuint64_t>(shape.sizes[i]);
    strides[i] = static_cast<cuuint64_t>(shape.strides[i]) * 2;
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    ones[i] = 1;
  }
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_SWIZZLE_64B,
                                              CU_TENSOR_MAP_SWIZZLE_128B};
  alignas(TensorMap) CUtensorMap map;
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, static_cast<cuuint32_t>(shape.sizes.size()), base,
      sizes, strides + 1, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
      kSwizzles[static_cast<int>(shape.swizzle)], CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled: error %d\n", static_cast<int>(result));
    std::exit(1);
  }
  TensorMap copied;
  std::memcpy(&copied, &map, sizeof copied);
  return copied;
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1)
    entry(const __grid_constant__ Kernel kernel) {
  kernel();
}

template <class Kernel, class... Buffers>
void run(const Kernel &kernel, const Settings &settings, Buffers &...) {
  CHECK_CUDA(cudaFuncSetAttribute(entry<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  settings.shared_bytes));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(settings.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(settings.blocks));
  config.blockDim = dim3(Kernel::kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(settings.shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  CHECK_CUDA(cudaLaunchKernelEx(&config, entry<Kernel>, kernel));
  CHECK_CUDA(cudaDeviceSynchronize());
}

// Tensor cores keep fewer bits than fp32 while they sum. `magnitude` is that of all addends.
inline bool is_sum(float got, float expected, float magnitude) {
  return std::fabs(got - expected) <= magnitude * 0x1p-18f;
}

template <int kCount>
__device__ void expect_poison(const float (&)[kCount]) {}

#endif

}  // namespace wrappers
