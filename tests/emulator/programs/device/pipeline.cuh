// A warp-specialised matrix product with every kind of synchronisation of sm_90.
//
// A lane of the producer warp draws tiles and loads them into two stages; two consumer warpgroups
// multiply, and store through shared memory.
#pragma once

#include "device/harness.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/named_barrier.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/ptx/wgmma.cuh"

namespace wrappers::pipeline {

constexpr int kRows = 330, kColumns = 64, kDepth = 128;  // rows: the last tile is partial
constexpr int kTileRows = 128, kTileDepth = 64, kStages = 2, kGroups = 2, kGroupRows = 64;
constexpr int kTiles = (kRows + kTileRows - 1) / kTileRows, kSteps = kDepth / kTileDepth;
constexpr int kProducerThreads = 128, kConsumerWarps = 4 * kGroups, kRowBytes = 128, kBlocks = 2;
constexpr Swizzle kSwizzle = Swizzle::bytes_128;

// C (kRows, kColumns) = A (kRows, kDepth) times B (kDepth, kColumns); bf16, sums in fp32. The
// numbers are small integers, so that all sums are exact in any order.
struct Matrices {
  Buffer<uint16_t> a, b, c;
  Buffer<uint32_t> counter;

  Matrices() : a(kRows * kDepth), b(kDepth * kColumns), c(kRows * kColumns), counter(4) {
    Random random(11);
    for (auto &x : a) x = draw(random);
    for (auto &x : b) x = draw(random);
  }
  static uint16_t draw(Random &random) {
    const float integer = static_cast<float>(random.bits() % 5) - 2;
    return static_cast<uint16_t>(float_bits(integer) >> 16);
  }
  static TensorMap map_of(Buffer<uint16_t> &m, int rows, int columns, int box_rows) {
    return make_map(m.data(), {{columns, rows}, {1, columns}, {64, box_rows}, kSwizzle});
  }
};

struct Smem {
  char a[kStages][kTileRows * kRowBytes];
  char b[kStages][kTileDepth * kRowBytes];
  char c[kGroups][kGroupRows * kRowBytes];
  uint64_t full[kStages], empty[kStages], tile_full, tile_empty;
  uint32_t tile;
};

#define AT(member) (shared_memory() + static_cast<int>(offsetof(Smem, member)))

// The next stage, and the parity of its phase.
struct Cursor {
  int stage = 0, parity = 0;
  FLASHSMITH_DEVICE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  FLASHSMITH_DEVICE shared_address of(shared_address first, int bytes) const {
    return first + stage * bytes;
  }
  FLASHSMITH_DEVICE shared_address full() const { return of(AT(full), kMbarrierBytes); }
  FLASHSMITH_DEVICE shared_address empty() const { return of(AT(empty), kMbarrierBytes); }
};

struct Kernel {
  static constexpr int kThreads = kProducerThreads + kGroups * kWarpgroupThreads;

  TensorMap a, b, c;
  uint32_t *counter;

  FLASHSMITH_DEVICE void operator()() const;

 private:
  FLASHSMITH_DEVICE void produce() const;
  FLASHSMITH_DEVICE void consume() const;
  FLASHSMITH_DEVICE void store(const float (&sums)[kColumns / 2], int group, int tile) const;
};

FLASHSMITH_DEVICE void Kernel::produce() const {
  Cursor cursor;
  for (int draw = 0;; ++draw) {
    const uint32_t tile = thread_atomic_add(counter, 1);
    mbarrier_wait_parity(AT(tile_empty), (draw & 1) ^ 1);
    thread_store_shared_4(AT(tile), tile);
    mbarrier_arrive(AT(tile_full));
    if (tile >= kTiles) return;
    for (int step = 0; step < kSteps; ++step, cursor.advance()) {
      mbarrier_wait_parity(cursor.empty(), cursor.parity ^ 1);
      mbarrier_arrive_expect_tx(cursor.full(), sizeof(Smem::a[0]) + sizeof(Smem::b[0]));
      tma_load(cursor.of(AT(a), sizeof(Smem::a[0])), a, cursor.full(), step * kTileDepth,
               static_cast<int>(tile) * kTileRows);
      tma_load(cursor.of(AT(b), sizeof(Smem::b[0])), b, cursor.full(), 0, step * kTileDepth);
    }
  }
}

FLASHSMITH_DEVICE void multiply(float (&sums)[kColumns / 2], int group, Cursor &cursor) {
  const bool speaks = thread_index() % 32 == 0;
  for (int step = 0; step < kSteps; ++step, cursor.advance()) {
    mbarrier_wait_parity(cursor.full(), cursor.parity);
    const MatrixDescriptor a = k_major_descriptor(
        cursor.of(AT(a), sizeof(Smem::a[0])) + group * kGroupRows * kRowBytes, kSwizzle);
    const MatrixDescriptor b =
        mn_major_descriptor(cursor.of(AT(b), sizeof(Smem::b[0])), kSwizzle, 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTileDepth / 16; ++k) {
      wgmma_shared<bfloat16_t, kColumns, Major::k, Major::mn>(
          sums, advance(a, k * 32), advance(b, k * 16 * kRowBytes), step + k > 0);
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
    pin_registers(sums);
    if (speaks) mbarrier_arrive(cursor.empty());
  }
}

// Stores through this group's part of shared memory, which its last store may still be reading.
FLASHSMITH_DEVICE void Kernel::store(const float (&sums)[kColumns / 2], int group, int tile) const {
  const int thread = thread_index() % kWarpgroupThreads, lane = thread % 32;
  const shared_address mine = AT(c) + group * kGroupRows * kRowBytes;
  const int barrier = 1 + group;
  if (thread == 0) tma_store_wait_group_read<0>();
  named_barrier_sync(barrier, kWarpgroupThreads);
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    const int row = thread / 32 * 16 + lane / 4 + i % 2 * 8;
    const int chunk = i / 2 ^ row % 8;
    store_shared_4(mine + row * kRowBytes + chunk * 16 + lane % 4 * 4,
                   pack<bfloat16_t>(sums[2 * i], sums[2 * i + 1]));
  }
  fence_proxy_async();
  named_barrier_sync(barrier, kWarpgroupThreads);
  if (thread != 0) return;
  tma_store(c, mine, 0, tile * kTileRows + group * kGroupRows);
  tma_store_commit_group();
}

FLASHSMITH_DEVICE void Kernel::consume() const {
  const int group = (thread_index() - kProducerThreads) / kWarpgroupThreads;
  Cursor cursor;
  float sums[kColumns / 2];
  for (int draw = 0;; ++draw) {
    mbarrier_wait_parity(AT(tile_full), draw & 1);
    const int tile = static_cast<int>(load_shared_4(AT(tile)));
    warp_sync();
    if (thread_index() % 32 == 0) mbarrier_arrive(AT(tile_empty));
    if (tile >= kTiles) break;
    multiply(sums, group, cursor);
    store(sums, group, tile);
  }
  if (thread_index() % kWarpgroupThreads == 0) tma_store_wait_group<0>();
}

FLASHSMITH_DEVICE void Kernel::operator()() const {
  if (thread_index() == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(AT(full) + i * kMbarrierBytes, 1);
      mbarrier_init(AT(empty) + i * kMbarrierBytes, kConsumerWarps);
    }
    mbarrier_init(AT(tile_full), 1);
    mbarrier_init(AT(tile_empty), kConsumerWarps);
    fence_mbarrier_init();
  }
  barrier_sync();
  if (thread_index() < kProducerThreads) {
    decrease_registers<24>();
    if (warp_index() == 0 && elect_one()) produce();
  } else {
    increase_registers<240>();
    consume();
  }
}

#undef AT

inline Kernel kernel_of(Matrices &m) {
  return {Matrices::map_of(m.a, kRows, kDepth, kTileRows),
          Matrices::map_of(m.b, kDepth, kColumns, kTileDepth),
          Matrices::map_of(m.c, kRows, kColumns, kGroupRows), m.counter.data()};
}

// Returns the number of wrong elements of c.
inline int count_wrong(const Matrices &m) {
  const auto value = [](uint16_t bits) { return bits_float(uint32_t{bits} << 16); };
  int wrong = 0;
  for (int i = 0; i < kRows * kColumns; ++i) {
    float sum = 0;
    for (int k = 0; k < kDepth; ++k) {
      sum += value(m.a[static_cast<size_t>(i / kColumns * kDepth + k)]) *
             value(m.b[static_cast<size_t>(k * kColumns + i % kColumns)]);
    }
    // The sum is far below 256, and bf16 has all integers up to there.
    wrong += m.c[static_cast<size_t>(i)] != float_bits(sum) >> 16;
  }
  return wrong;
}

inline void check(Results &results) {
  for (int i = 0; i < 10; ++i) {
    Matrices m;
    run(kernel_of(m), {.shared_bytes = sizeof(Smem), .blocks = kBlocks}, m.a, m.b, m.c, m.counter);
    const int wrong = count_wrong(m);
    results.check(wrong == 0, "pipeline: %d elements of the product are wrong", wrong);
  }
}

}  // namespace wrappers::pipeline
