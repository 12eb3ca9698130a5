// The forward kernel of the sm80 family: FlashAttention-2's algorithm 1, one block of Q for each
// thread block.
#pragma once

#include "flashsmith/sm80/forward_block.cuh"
#include "flashsmith/sm80/traits.cuh"

namespace flashsmith::sm80 {

// Grid: (n_Q_blocks, n_heads, batch). Block: threads_per_block(CFG). Dynamic shared memory:
// shared_memory_bytes(CFG).
template <typename Traits>
__global__ void __launch_bounds__(Traits::n_threads, Traits::blocks_per_SM)
    flash_forward_kernel(const __grid_constant__ ForwardKernelArgs args) {
  ForwardBlock<Traits>(args).run();
}

}  // namespace flashsmith::sm80
