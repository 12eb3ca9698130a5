// Instantiates every wrapper of sm_90, so that nvcc and ptxas check them; this program is never
// run.
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/cluster.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/named_barrier.cuh"
#include "flashsmith/ptx/reduction.cuh"
#include "flashsmith/ptx/stmatrix_transposed.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/ptx/wgmma.cuh"

namespace {

using namespace flashsmith;
using namespace flashsmith::ptx;

constexpr int kBarrier = 0, kTile = 1024;

template <typename value_t, int kN>
__device__ void multiply(float *out) {
  float c[kN / 2];
  uint32_t a[4] = {1, 2, 3, 4};
  const MatrixDescriptor k = k_major_descriptor(shared_memory() + kTile, Swizzle::bytes_128);
  const MatrixDescriptor mn =
      mn_major_descriptor(shared_memory() + kTile, Swizzle::bytes_64, 64 * 1024);
  wgmma_fence();
  wgmma_shared<value_t, kN, Major::k, Major::k>(c, k, advance(k, 32), false);
  wgmma_shared<value_t, kN, Major::mn, Major::mn>(c, mn, mn, true);
  wgmma_registers<value_t, kN, Major::k>(c, a, k, true);
  wgmma_registers<value_t, kN, Major::mn>(c, a, mn, true);
  wgmma_commit_group();
  wgmma_wait_group<1>();
  wgmma_wait_group<0>();
  pin_registers(c);
  pin_registers(a);
  for (int i = 0; i < kN / 2; ++i) out[i * kWarpgroupThreads + thread_index()] = c[i];
}

template <int kN>
__device__ void multiply_e4m3(float *out) {
  float c[kN / 2];
  const uint32_t a[4] = {1, 2, 3, 4};
  const MatrixDescriptor k = k_major_descriptor(shared_memory() + kTile, Swizzle::bytes_32);
  wgmma_fence();
  wgmma_shared<e4m3_t, kN, Major::k, Major::k>(c, k, advance(k, 32), false);
  wgmma_registers<e4m3_t, kN, Major::k>(c, a, k, true);
  wgmma_commit_group();
  wgmma_wait_group<0>();
  pin_registers(c);
  for (int i = 0; i < kN / 2; ++i) out[i * kWarpgroupThreads + thread_index()] = c[i];
}

}  // namespace

template <int kN>
__global__ void __launch_bounds__(kWarpgroupThreads) products(float *out) {
  multiply<half_t, kN>(out);
  multiply<bfloat16_t, kN>(out);
  multiply_e4m3<kN>(out);
}

#define INSTANTIATE(N) template __global__ void products<N>(float *);
INSTANTIATE(16)
INSTANTIATE(32)
INSTANTIATE(48)
INSTANTIATE(64)
INSTANTIATE(80)
INSTANTIATE(96)
INSTANTIATE(112)
INSTANTIATE(128)
INSTANTIATE(144)
INSTANTIATE(160)
INSTANTIATE(176)
INSTANTIATE(192)
INSTANTIATE(208)
INSTANTIATE(224)
INSTANTIATE(240)
INSTANTIATE(256)

__global__ void __launch_bounds__(384, 1)
    copies(const __grid_constant__ TensorMap map, uint32_t *counter, float *sums) {
  const shared_address barrier = shared_memory() + kBarrier, tile = shared_memory() + kTile;
  if (warp_index() / 4 == 0) {
    decrease_registers<24>();
    if (warp_index() == 0 && elect_one()) {
      mbarrier_init(barrier, 2);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(barrier, 1024);
      tma_load(tile, map, barrier, 0, 1);
      tma_load<CacheHint::evict_first>(tile, map, barrier, 0, 1, 2);
      tma_load<CacheHint::evict_last>(tile, map, barrier, 0, 1, 2, 3);
      tma_load(tile, map, barrier, 0, 1, 2, 3, 4);
      bulk_load(tile, sums, 1024, barrier);
      tma_load_multicast(tile, map, barrier, 0b11, 0, 1);
      tma_load_multicast<CacheHint::evict_first>(tile, map, barrier, 0b11, 0, 1, 2);
      tma_load_multicast<CacheHint::evict_last>(tile, map, barrier, 0b11, 0, 1, 2, 3);
      tma_load_multicast(tile, map, barrier, 0b11, 0, 1, 2, 3, 4);
      thread_store_shared_4(tile, thread_atomic_add(counter, 1));
    }
    named_barrier_arrive(1, 384);
  } else {
    increase_registers<240>();
    named_barrier_sync(1, 384);
    mbarrier_wait_parity(barrier, 0);
    mbarrier_wait_parity(barrier, 1);
    mbarrier_arrive(barrier);
    mbarrier_arrive_remote(barrier, cluster_rank() ^ 1);
    cluster_sync();
    store_shared_4(tile, load_shared_4(tile) + thread_load_shared_4(tile + 4));
    stmatrix_x4_transposed(tile + thread_index() % 32 * 16, {1, 2, 3, 4});
    fence_proxy_async();
    thread_store_global_4(counter, 1);
    Chunk chunk;
    load_shared_16(chunk, tile);
    thread_store_global_16(counter, chunk);
    named_barrier_sync(2, 256);
    if (thread_index() == 128) {
      tma_store(map, tile, 0, 1);
      tma_store(map, tile, 0, 1, 2);
      tma_store(map, tile, 0, 1, 2, 3);
      tma_store(map, tile, 0, 1, 2, 3, 4);
      wait_global(counter, 1);
      fence_proxy_async_global();
      bulk_store(sums, tile, 1024);
      bulk_add(sums, tile, 1024);
      tma_store_commit_group();
      tma_store_wait_group_read<0>();
      tma_store_wait_group<0>();
      release_global(counter, 2);
    }
  }
}
