// The forward kernel of the sm90 family: FlashAttention-2's algorithm 1 in warp-specialised blocks,
// as FlashAttention-3 (section 3) lays them out. One warpgroup loads, the others compute.
#pragma once

#include "flashsmith/hopper/consumer.cuh"
#include "flashsmith/hopper/pipeline.cuh"
#include "flashsmith/hopper/producer.cuh"
#include "flashsmith/hopper/static_kernel_configuration.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/warpgroup.cuh"

namespace flashsmith {

// Grid: grid_blocks(CFG, tiles, multiprocessors), in clusters of cluster_size along x. Block:
// threads_per_block(CFG). Dynamic shared memory: shared_memory_bytes(CFG).
template <typename Kernel>
__global__ void __launch_bounds__(Kernel::n_threads, 1)
    hopper_forward_kernel(const __grid_constant__ HopperForwardKernelArgs args) {
  // With one consumer warpgroup every thread has as many registers as there can be.
  constexpr bool kMoveRegisters = Kernel::n_warpgroups > 1;
  if (ptx::thread_index() == 0) Barriers<Kernel>::init();
  if constexpr (Kernel::cluster_size > 1) {
    ptx::cluster_sync();
  } else {
    ptx::barrier_sync();
  }
  // In a way that the compiler knows to be uniform: with it ring positions and loop counts are.
  const int warpgroup = ptx::warp_index() / (kWarpgroupSize / kWarpSize);
  if (warpgroup == 0) {
    if constexpr (kMoveRegisters) ptx::decrease_registers<Kernel::registers.producer>();
    if (ptx::warp_index() == 0 && ptx::elect_one()) produce<Kernel>(args);
  } else {
    if constexpr (kMoveRegisters) ptx::increase_registers<Kernel::registers.consumer>();
    Consumer<Kernel>(args, warpgroup - 1).run();
  }
}

}  // namespace flashsmith
