// A warp-specialised matrix product with every kind of synchronisation of sm_90: a producer warp's
// lane draws tiles and loads them into two stages, two consumer warpgroups multiply and store
// through shared memory. Dropping any site must be noticed; the result may depend on nothing but
// the input.
#include "cases.h"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/named_barrier.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/ptx/wgmma.cuh"

namespace cases {

namespace {

using namespace flashsmith;
using namespace flashsmith::ptx;
using ptx::elect_one, ptx::pack, ptx::shared_memory, ptx::thread_index;  // not the emulator's

constexpr int kRows = 330, kColumns = 64, kDepth = 128;  // rows: the last tile sticks out
constexpr int kTileRows = 128, kTileDepth = 64, kStages = 2, kGroups = 2, kGroupRows = 64;
constexpr int kTiles = (kRows + kTileRows - 1) / kTileRows, kSteps = kDepth / kTileDepth;
constexpr int kProducerThreads = 128, kThreads = kProducerThreads + kGroups * kWarpgroupThreads;
constexpr int kConsumerWarps = 4 * kGroups, kRowBytes = 128, kBlocks = 2;
constexpr Swizzle kSwizzle = Swizzle::bytes_128;

// C (kRows, kColumns) = A (kRows, kDepth) times B (kDepth, kColumns); bf16, sums in fp32.
struct Matrices {
  std::vector<uint16_t> a, b, c;
  std::vector<uint32_t> counter;

  Matrices() : a(kRows * kDepth), b(kDepth * kColumns), c(kRows * kColumns), counter(4) {
    Random random(11);
    for (auto &x : a) x = static_cast<uint16_t>((random.bits() & 0x80FF) + 0x3E80);
    for (auto &x : b) x = static_cast<uint16_t>((random.bits() & 0x80FF) + 0x3E80);
  }
  static TensorMap map_of(std::vector<uint16_t> &m, int rows, int columns, int box_rows) {
    const auto size = [](int x) { return static_cast<uint64_t>(x); };
    return {m.data(),
            2,
            2,
            {size(columns), size(rows)},
            {2, size(columns) * 2},
            {64, static_cast<uint32_t>(box_rows)},
            kSwizzle};
  }
};

struct Arguments {
  TensorMap a, b, c;
  uint32_t *counter;
};

struct Smem {
  char a[kStages][kTileRows * kRowBytes];
  char b[kStages][kTileDepth * kRowBytes];
  char c[kGroups][kGroupRows * kRowBytes];
  uint64_t full[kStages], empty[kStages], tile_full, tile_empty;
  uint32_t tile;
};

#define AT(member) (shared_memory() + static_cast<int>(offsetof(Smem, member)))

// Which stage is next, and the parity of its phase.
struct Cursor {
  int stage = 0, parity = 0;
  void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  shared_address of(shared_address first, int bytes) const { return first + stage * bytes; }
  shared_address full() const { return of(AT(full), kMbarrierBytes); }
  shared_address empty() const { return of(AT(empty), kMbarrierBytes); }
};

void produce(const Arguments &arguments) {
  Cursor cursor;
  for (int draw = 0;; ++draw) {
    const uint32_t tile = thread_atomic_add(arguments.counter, 1);
    mbarrier_wait_parity(AT(tile_empty), (draw & 1) ^ 1);
    thread_store_shared_4(AT(tile), tile);
    mbarrier_arrive(AT(tile_full));
    if (tile >= kTiles) return;
    for (int step = 0; step < kSteps; ++step, cursor.advance()) {
      mbarrier_wait_parity(cursor.empty(), cursor.parity ^ 1);
      mbarrier_arrive_expect_tx(cursor.full(), sizeof(Smem::a[0]) + sizeof(Smem::b[0]));
      tma_load(cursor.of(AT(a), sizeof(Smem::a[0])), arguments.a, cursor.full(), step * kTileDepth,
               static_cast<int>(tile) * kTileRows);
      tma_load(cursor.of(AT(b), sizeof(Smem::b[0])), arguments.b, cursor.full(), 0,
               step * kTileDepth);
    }
  }
}

void multiply(float (&c)[kColumns / 2], int group, Cursor &cursor) {
  const bool speaks = thread_index() % 32 == 0;
  for (int step = 0; step < kSteps; ++step, cursor.advance()) {
    mbarrier_wait_parity(cursor.full(), cursor.parity);
    const MatrixDescriptor a = k_major_descriptor(
        cursor.of(AT(a), sizeof(Smem::a[0])) + group * kGroupRows * kRowBytes, kSwizzle);
    const MatrixDescriptor b =
        mn_major_descriptor(cursor.of(AT(b), sizeof(Smem::b[0])), kSwizzle, 0);
    wgmma_fence();
    for (int k = 0; k < kTileDepth / 16; ++k) {
      wgmma_shared<bfloat16_t, kColumns, Major::k, Major::mn>(
          c, advance(a, k * 32), advance(b, k * 16 * kRowBytes), step + k > 0);
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
    if (speaks) mbarrier_arrive(cursor.empty());
  }
}

// Through this group's part of shared memory, which its last store may still be reading.
void store(const Arguments &arguments, const float (&c)[kColumns / 2], int group, int tile) {
  const int thread = thread_index() % kWarpgroupThreads, lane = thread % 32;
  const shared_address mine = AT(c) + group * kGroupRows * kRowBytes;
  const int barrier = 1 + group;
  if (thread == 0) tma_store_wait_group_read<0>();
  named_barrier_sync(barrier, kWarpgroupThreads);
  for (int i = 0; i < kColumns / 4; ++i) {
    const int row = thread / 32 * 16 + lane / 4 + i % 2 * 8;
    const int chunk = i / 2 ^ row % 8;
    store_shared_4(mine + row * kRowBytes + chunk * 16 + lane % 4 * 4,
                   pack<bfloat16_t>(c[2 * i], c[2 * i + 1]));
  }
  fence_proxy_async();
  named_barrier_sync(barrier, kWarpgroupThreads);
  if (thread != 0) return;
  tma_store(arguments.c, mine, 0, tile * kTileRows + group * kGroupRows);
  tma_store_commit_group();
}

void consume(const Arguments &arguments) {
  const int group = (thread_index() - kProducerThreads) / kWarpgroupThreads;
  Cursor cursor;
  float c[kColumns / 2];
  for (int draw = 0;; ++draw) {
    mbarrier_wait_parity(AT(tile_full), draw & 1);
    const int tile = static_cast<int>(load_shared_4(AT(tile)));
    warp_sync();
    if (thread_index() % 32 == 0) mbarrier_arrive(AT(tile_empty));
    if (tile >= kTiles) break;
    multiply(c, group, cursor);
    store(arguments, c, group, tile);
  }
  if (thread_index() % kWarpgroupThreads == 0) tma_store_wait_group<0>();
}

void kernel(const Arguments &arguments) {
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
    if (warp_index() == 0 && elect_one()) produce(arguments);
  } else {
    increase_registers<240>();
    consume(arguments);
  }
}

struct Outcome {
  std::string fault;
  std::vector<uint16_t> c;
  Report report;
};

Outcome run(const Options &options) {
  Matrices m;
  const Arguments arguments{Matrices::map_of(m.a, kRows, kDepth, kTileRows),
                            Matrices::map_of(m.b, kDepth, kColumns, kTileDepth),
                            Matrices::map_of(m.c, kRows, kColumns, kGroupRows), m.counter.data()};
  const Launch settings{.kernel = "hopper_pipeline",
                        .grid = {kBlocks, 1, 1},
                        .threads = kThreads,
                        .shared_memory_bytes = sizeof(Smem),
                        .memory = {{m.a.data(), m.a.size() * 2, "a", false},
                                   {m.b.data(), m.b.size() * 2, "b", false},
                                   {m.c.data(), m.c.size() * 2, "c", true},
                                   {m.counter.data(), 16, "counter", true}},
                        .body = [&] { kernel(arguments); }};
  Outcome outcome;
  try {
    outcome.report = launch(settings, options);
    outcome.c = m.c;
  } catch (const Fault &fault) {
    outcome.fault = fault.what();
  }
  return outcome;
}

float value(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float result;
  std::memcpy(&result, &word, sizeof result);
  return result;
}

void check_result(const std::vector<uint16_t> &c) {
  const Matrices m;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      float sum = 0;  // in order of k: equal to the last bit
      for (int k = 0; k < kDepth; ++k) {
        sum += value(m.a[static_cast<size_t>(i * kDepth + k)]) *
               value(m.b[static_cast<size_t>(k * kColumns + j)]);
      }
      const uint32_t expected = pack<bfloat16_t>(sum, 0);
      const uint16_t got = c[static_cast<size_t>(i * kColumns + j)];
      if (got != expected) fail("c[%d][%d] is %x, not %x", i, j, got, expected);
    }
  }
}

void print_noticed(const Outcome &clean) {
  std::printf("\"sites\": {");
  const char *separator = "";
  for (const Site &site : clean.report.sites) {
    std::printf("%s\n\"%s:%u\": [", separator, site.kind.c_str(), site.line);
    separator = ",";
    for (uint64_t seed = 0; seed < 10; ++seed) {
      // All tiles in one block: so that each site is needed.
      const Outcome dropped = run({.seed = seed, .dropped = site, .count = false, .workers = 1});
      const bool differs = dropped.c != clean.c;
      std::printf(
          "%s\"%s\"", seed ? ", " : "",
          dropped.fault.empty() ? (differs ? "result differs" : "") : dropped.fault.c_str());
    }
    std::printf("]");
  }
  std::printf("\n}");
}

}  // namespace

void hopper_pipeline() {
  const Outcome clean = run({.workers = 1});
  if (!clean.fault.empty()) fail("%s", clean.fault.c_str());
  check_result(clean.c);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Outcome other = run({.seed = seed, .workers = seed % 2 ? 2 : 1});
    if (!other.fault.empty()) fail("seed %llu: %s", (unsigned long long)seed, other.fault.c_str());
    if (other.c != clean.c) fail("seed %llu: the result differs", (unsigned long long)seed);
  }
  const Counters &c = clean.report.counters;
  const std::pair<const char *, uint64_t> counts[] = {{"wgmma", c.wgmma},
                                                      {"wgmma_flops", c.wgmma_flops},
                                                      {"wgmma_shared_bytes", c.wgmma_shared_bytes},
                                                      {"tma_loads", c.tma_loads},
                                                      {"tma_load_bytes", c.tma_load_bytes},
                                                      {"tma_stores", c.tma_stores},
                                                      {"tma_store_bytes", c.tma_store_bytes},
                                                      {"mbarrier_waits", c.mbarrier_waits},
                                                      {"named_barriers", c.named_barriers}};
  std::printf("{");
  for (const auto &[name, count] : counts) {
    std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(count));
  }
  print_noticed(clean);
  std::puts("}");
}

}  // namespace cases
