// The boundary between the two targets: nvcc compiles the kernels for a GPU, and with
// FLASHSMITH_EMULATOR defined any C++20 compiler compiles the same text for the CPU. Only files in
// this folder distinguish the targets.
#pragma once

#include <cstdint>

#ifdef FLASHSMITH_EMULATOR
#include "emulator/device.h"
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define FLASHSMITH_DEVICE inline
#define FLASHSMITH_HOST_DEVICE inline
// The last parameter of a synchronising instruction, by which the emulator distinguishes call
// sites. The second form follows other parameters.
#define FLASHSMITH_CALL_SITE \
  ::flashsmith::emulator::Where where = ::flashsmith::emulator::Where::current()
#define FLASHSMITH_LAST_CALL_SITE , FLASHSMITH_CALL_SITE
#else
#define FLASHSMITH_DEVICE __device__ __forceinline__
#define FLASHSMITH_HOST_DEVICE __host__ __device__ __forceinline__
#define FLASHSMITH_CALL_SITE
#define FLASHSMITH_LAST_CALL_SITE
#endif

namespace flashsmith::ptx {

#ifdef FLASHSMITH_EMULATOR

// An address in shared memory, as the instructions take it. It is an integer, for address
// arithmetic.
using shared_address = uintptr_t;

FLASHSMITH_DEVICE int thread_index() { return emulator::thread_index(); }
FLASHSMITH_DEVICE int block_index_x() { return emulator::block_index().x; }
FLASHSMITH_DEVICE int block_index_y() { return emulator::block_index().y; }
FLASHSMITH_DEVICE int block_index_z() { return emulator::block_index().z; }
FLASHSMITH_DEVICE int grid_size_x() { return emulator::grid_size().x; }

// Returns the base of the block's dynamic shared memory, 1024-byte aligned.
FLASHSMITH_DEVICE shared_address shared_memory() {
  return reinterpret_cast<shared_address>(emulator::shared_memory());
}
FLASHSMITH_DEVICE void *pointer(shared_address address) {
  return reinterpret_cast<void *>(address);
}

#else

using shared_address = uint32_t;

FLASHSMITH_DEVICE int thread_index() { return threadIdx.x; }
FLASHSMITH_DEVICE int block_index_x() { return blockIdx.x; }
FLASHSMITH_DEVICE int block_index_y() { return blockIdx.y; }
FLASHSMITH_DEVICE int block_index_z() { return blockIdx.z; }
FLASHSMITH_DEVICE int grid_size_x() { return gridDim.x; }

extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];

FLASHSMITH_DEVICE shared_address shared_memory() {
  return static_cast<shared_address>(__cvta_generic_to_shared(dynamic_shared_memory));
}

#endif

}  // namespace flashsmith::ptx
