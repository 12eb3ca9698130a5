// A double-buffered matrix product with every kind of synchronisation. All of it is needed, so that
// dropping any site must be noticed; the result may depend only on the input.
#include "cases.h"

namespace cases {

namespace {

constexpr int kRows = 64, kColumns = 64, kDepth = 128, kTile = 32;  // kTile: of the depth
constexpr int kWarps = 4, kThreads = kWarps * 32, kBlocks = 6;
constexpr int kChunk = 8;                      // fp16 elements of 16 bytes
constexpr int kRowChunks = kTile / kChunk;     // of a tile in shared memory
constexpr int kTileBytes = kRows * kTile * 2;  // A and B have as many rows

// C (kBlocks, kRows, kColumns) = A (kBlocks, kRows, kDepth) times B (kBlocks, kColumns, kDepth)^T.
struct Problem {
  std::vector<uint16_t> a, b;
  std::vector<float> c;

  Problem() : a(kBlocks * kRows * kDepth), b(kBlocks * kColumns * kDepth) {
    Random random(7);
    for (auto &x : a) x = static_cast<uint16_t>((random.bits() & 0x83FF) + 0x3400);
    for (auto &x : b) x = static_cast<uint16_t>((random.bits() & 0x83FF) + 0x3400);
    c.resize(kBlocks * kRows * kColumns);
  }
};

struct Smem {
  char a[2][kTileBytes], b[2][kTileBytes];
};
constexpr int kOutRowBytes = 8 * 4;  // an mma's columns, per warp
static_assert(kWarps * 16 * kOutRowBytes <= kTileBytes, "the epilogue reuses a tile");

char *chunk_of(char *tile, unsigned row, unsigned chunk) {
  return tile + (row * kRowChunks + (chunk ^ (row / 2 % kRowChunks))) * 16;
}

void load_tile(char *tile, const uint16_t *source) {
  for (unsigned i = thread_index(); i < kRows * kRowChunks; i += kThreads) {
    const unsigned row = i / kRowChunks, chunk = i % kRowChunks;
    cp_async_16(chunk_of(tile, row, chunk), source + row * kDepth + chunk * kChunk);
  }
}

void multiply_tiles(float (&sums)[kColumns / 8][4], char *a, char *b) {
  const unsigned warp = thread_index() / 32, lane = thread_index() % 32;
  for (unsigned k = 0; k < kTile / 16; ++k) {
    uint32_t a_rmem[4], b_rmem[4];
    ldmatrix_x4(a_rmem, chunk_of(a, warp * 16 + lane % 16, k * 2 + lane / 16), false);
    for (unsigned n = 0; n < kColumns / 16; ++n) {
      const unsigned column = n * 16 + lane % 8 + lane / 16 * 8;
      ldmatrix_x4(b_rmem, chunk_of(b, column, k * 2 + lane / 8 % 2), false);
      mma_m16n8k16(sums[2 * n], a_rmem, b_rmem[0], b_rmem[1], MmaType::f16);
      mma_m16n8k16(sums[2 * n + 1], a_rmem, b_rmem[2], b_rmem[3], MmaType::f16);
    }
  }
}

// Eight columns at a time go out through the warp's part of shared memory, 16 bytes a lane.
void store_result(const float (&sums)[kColumns / 8][4], char *out_smem, float *c) {
  const unsigned warp = thread_index() / 32, lane = thread_index() % 32;
  char *mine = out_smem + warp * 16 * kOutRowBytes;
  for (unsigned n = 0; n < kColumns / 8; ++n) {
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = lane / 4 + half * 8;
      store_shared(mine + row * kOutRowBytes + lane % 4 * 8, &sums[n][half * 2], 8);
    }
    warp_sync(Where::current());
    float chunk[4];
    load_shared(chunk, mine + lane * 16, 16);
    store_global(c + (warp * 16 + lane / 2) * kColumns + n * 8 + lane % 2 * 4, chunk, 16);
    warp_sync(Where::current());
  }
}

void kernel(Problem &problem) {
  Smem &smem = *static_cast<Smem *>(shared_memory());
  const uint16_t *a = &problem.a[block_index().x * kRows * kDepth];
  const uint16_t *b = &problem.b[block_index().x * kColumns * kDepth];
  float sums[kColumns / 8][4] = {};
  constexpr int kTiles = kDepth / kTile;
  const auto issue = [&](int tile) {
    if (tile < kTiles) {
      load_tile(smem.a[tile % 2], a + tile * kTile);
      load_tile(smem.b[tile % 2], b + tile * kTile);
    }
    cp_async_commit_group();
  };
  issue(0);
  for (int tile = 0; tile < kTiles; ++tile) {
    issue(tile + 1);
    cp_async_wait_group(1, Where::current());
    barrier_sync(Where::current());
    multiply_tiles(sums, smem.a[tile % 2], smem.b[tile % 2]);
    barrier_sync(Where::current());
  }
  store_result(sums, smem.a[0], &problem.c[block_index().x * kRows * kColumns]);
}

struct Outcome {
  std::string fault;
  std::vector<float> c;
  Report report;
};

Outcome run(const Options &options) {
  Problem problem;
  const Launch settings{.kernel = "pipeline",
                        .grid = {kBlocks, 1, 1},
                        .threads = kThreads,
                        .shared_memory_bytes = sizeof(Smem),
                        .memory = {{problem.a.data(), problem.a.size() * 2, "a", false},
                                   {problem.b.data(), problem.b.size() * 2, "b", false},
                                   {problem.c.data(), problem.c.size() * 4, "c", true}},
                        .body = [&] { kernel(problem); }};
  Outcome outcome;
  try {
    outcome.report = launch(settings, options);
    outcome.c = problem.c;
  } catch (const Fault &fault) {
    outcome.fault = fault.what();
  }
  return outcome;
}

float f16_value(uint16_t bits) {  // normal numbers only
  const float mantissa = static_cast<float>((bits & 0x3FF) | 0x400);
  const int exponent = (bits >> 10 & 31) - 25;
  const float scale =
      exponent < 0 ? 1.0f / static_cast<float>(1 << -exponent) : static_cast<float>(1 << exponent);
  return (bits & 0x8000 ? -mantissa : mantissa) * scale;
}

void check_result(const std::vector<float> &c) {
  const Problem problem;
  for (int block = 0; block < kBlocks; ++block) {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        float expected = 0;  // in the order of the tiles and of k, so equal to the last bit
        for (int k = 0; k < kDepth; ++k) {
          expected += f16_value(problem.a[(block * kRows + i) * kDepth + k]) *
                      f16_value(problem.b[(block * kColumns + j) * kDepth + k]);
        }
        const float got = c[(block * kRows + i) * kColumns + j];
        if (got != expected) fail("c[%d][%d][%d] is %a, not %a", block, i, j, got, expected);
      }
    }
  }
}

}  // namespace

void pipeline() {
  const Outcome clean = run({});
  if (!clean.fault.empty()) fail("%s", clean.fault.c_str());
  check_result(clean.c);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (int workers : {1, 3}) {
      const Outcome other = run({.seed = seed, .count = seed % 2 == 0, .workers = workers});
      if (!other.fault.empty())
        fail("seed %llu: %s", (unsigned long long)seed, other.fault.c_str());
      if (std::memcmp(other.c.data(), clean.c.data(), clean.c.size() * 4) != 0) {
        fail("seed %llu, %d workers: the result differs", (unsigned long long)seed, workers);
      }
    }
  }
  std::printf("{");
  const char *separator = "";
  for (const Site &site : clean.report.sites) {
    std::printf("%s\n\"%s:%u\": [", separator, site.kind.c_str(), site.line);
    separator = ",";
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const Outcome dropped = run({.seed = seed, .dropped = site});
      const bool differs = dropped.c != clean.c;
      std::printf(
          "%s\"%s\"", seed ? ", " : "",
          dropped.fault.empty() ? (differs ? "result differs" : "") : dropped.fault.c_str());
    }
    std::printf("]");
  }
  std::puts("\n}");
}

}  // namespace cases
