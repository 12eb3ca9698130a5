// A warpgroup of the backward stages data in shared memory for the async proxy: dS for the products
// of dQ, and dQ for the bulk copy that adds it.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/ptx/stmatrix_transposed.cuh"
#include "flashsmith/sm90/backward_gemm.cuh"

namespace flashsmith::sm90 {

// Returns the thread's index in its warpgroup. It is recomputed, so that nothing derived from it
// stays in a register: the loop has none to spare.
FLASHSMITH_DEVICE int warpgroup_thread() {
  return static_cast<unsigned>(ptx::recomputed(ptx::thread_index())) % kWarpgroupSize;
}
FLASHSMITH_DEVICE int warpgroup_lane() { return warpgroup_thread() % kWarpSize; }
FLASHSMITH_DEVICE int warpgroup_warp() { return warpgroup_thread() / kWarpSize; }

// Arrives for the warp, which has finished with a buffer or has filled it.
FLASHSMITH_DEVICE void release(ptx::shared_address barrier) {
  if (warpgroup_lane() == 0) ptx::mbarrier_arrive(barrier);
}

// Publishes the warp's stores to the async proxy, and lets it overwrite what the warp has loaded.
FLASHSMITH_DEVICE void publish(ptx::shared_address barrier) {
  ptx::fence_proxy_async();
  ptx::warp_sync();
  release(barrier);
}

// Stores dS^T as rows of queries. `box` is the box of the warpgroup's keys.
template <typename Traits>
FLASHSMITH_DEVICE void stage_dS(ptx::shared_address box, const ScoreOperand<Traits> &dS) {
  const int matrix = warpgroup_lane() / 8, row = warpgroup_lane() % 8;
  const int chunk = 2 * warpgroup_warp() + matrix % 2;
  const ptx::shared_address first = box + (matrix / 2 * 8 + row) * Traits::dS_row_bytes +
                                    (chunk ^ chunk_permutation<Traits::dS_row_bytes>(row)) * 16;
#pragma unroll
  for (int step = 0; step < Traits::query_steps; step++) {
    ptx::stmatrix_x4_transposed(first + step * kWgmmaK * Traits::dS_row_bytes, dS[step]);
  }
}

// Returns the address of chunk i of the thread's dQ, in the order of the fragments.
FLASHSMITH_DEVICE ptx::shared_address dQ_chunk(ptx::shared_address dQ, int i) {
  constexpr int kChunkBytes = 16;
  return dQ + (i * kWarpgroupSize + warpgroup_thread()) * kChunkBytes;
}

template <typename Traits>
FLASHSMITH_DEVICE void stage_dQ(ptx::shared_address out, const dQAccumulator<Traits> &dQ) {
#pragma unroll
  for (int i = 0; i < Traits::dQ_columns / 8; i++) {
    ptx::Chunk chunk;
#pragma unroll
    for (int word = 0; word < 4; word++) chunk.word[word] = ptx::float_bits(dQ[4 * i + word]);
    ptx::store_shared_16(dQ_chunk(out, i), chunk);
  }
}

// Adds sums that a bulk copy has loaded.
template <typename Traits>
FLASHSMITH_DEVICE void add_staged(dQAccumulator<Traits> &dQ, ptx::shared_address sums) {
#pragma unroll
  for (int i = 0; i < Traits::dQ_columns / 8; i++) {
    ptx::Chunk chunk;
    ptx::load_shared_16(chunk, dQ_chunk(sums, i));
#pragma unroll
    for (int word = 0; word < 4; word++) dQ[4 * i + word] += ptx::bits_float(chunk.word[word]);
  }
}

}  // namespace flashsmith::sm90
