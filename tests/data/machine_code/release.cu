// These kernels read shared memory by ldmatrix and arrive at an mbarrier.
// tests/jit/test_lint_build.py compiles them; the listings beside this file are cuobjdump 13.2's
// output for nvcc 13.0's objects (two kernels for sm_90a, one for the other architectures; headers
// and padding cut).
#include <cstdint>

namespace {

struct Fragment {
  uint32_t registers[4];
};

__device__ __forceinline__ uint32_t shared_address() {
  extern __shared__ uint32_t memory[];
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

__device__ __forceinline__ Fragment load() {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.registers[0]), "=r"(f.registers[1]), "=r"(f.registers[2]),
                 "=r"(f.registers[3])
               : "r"(shared_address() + threadIdx.x * 16 + 64)
               : "memory");
  return f;
}

__device__ __forceinline__ uint32_t sum(const Fragment &f) {
  return f.registers[0] + f.registers[1] + f.registers[2] + f.registers[3];
}

__device__ __forceinline__ void arrive() {
  if (threadIdx.x % 32 == 0) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address()) : "memory");
  }
}

}  // namespace

extern "C" __global__ void arrives_early(uint32_t *out) {
  const Fragment f = load();
  arrive();
  out[threadIdx.x] = sum(f);
}

extern "C" __global__ void arrives_after_use(uint32_t *out) {
  const uint32_t total = sum(load());
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared_address() + 32), "r"(total) : "memory");
  arrive();
  out[threadIdx.x] = total;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
extern "C" __global__ void arrives_behind_fence(uint32_t *out) {
  const Fragment f = load();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  arrive();
  out[threadIdx.x] = sum(f);
}
#endif

// The load of one iteration is in flight at the arrival of the next.
extern "C" __global__ void arrives_in_loop(uint32_t *out, int n) {
  Fragment f = load();
  out[threadIdx.x] = sum(f);
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    arrive();
    out += 32;
    if (i % 3 == 0) out[threadIdx.x] = sum(f);
    f = load();
  }
  out[threadIdx.x] = sum(f);
}
