// The order of warps, grids, workers, and launches that are refused.
#include <algorithm>
#include <fstream>

#include "cases.h"

namespace cases {

namespace {

Launch of(Dim3 grid, unsigned threads, std::function<void()> body, unsigned cluster = 1) {
  return {.kernel = "scheduled",
          .grid = grid,
          .threads = threads,
          .shared_memory_bytes = 1024,
          .memory = {},
          .body = std::move(body),
          .cluster = cluster};
}

// Returns the order in which eight warps pass a barrier, twice.
std::string order(uint64_t seed) {
  std::string passed;
  launch(of({}, 256,
            [&] {
              for (int round = 0; round < 2; ++round) {
                barrier_sync(Where::current());
                if (thread_index() % 32 == 0) {
                  passed += static_cast<char>('0' + thread_index() / 32);
                }
              }
            }),
         {.seed = seed, .workers = 1});
  return passed;
}

std::string fault_of(int workers) {
  const auto body = [] {
    const Dim3 block = block_index();
    // Later blocks fail at once, the earliest one after a while.
    if (block.x == 1 && block.y == 2 && block.z == 1) {
      for (int i = 0; i < 2000; ++i) warp_sync(Where::current());
      shuffle_xor(1, 99);
    }
    if (block.z == 2) shuffle_xor(1, 77);
  };
  try {
    launch(of({4, 3, 3}, 32, body), {.workers = workers});
  } catch (const Fault &fault) {
    return fault.what();
  }
  return "";
}

std::string refusal_of(const Launch &settings, const Options &options) {
  try {
    launch(settings, options);
  } catch (const std::invalid_argument &error) {
    return error.what();
  }
  return "";
}

// Returns the fault of a thread that arrives `arrivals` times at mbarriers without ever waiting.
std::string fault_of_arrivals(int arrivals) {
  constexpr int kMaxOfOne = (1 << 20) - 1;
  const auto body = [=] {
    if (thread_index() > 0) return;
    for (int i = 0; i * kMaxOfOne < arrivals; ++i) {
      char *barrier = shared_bytes() + 8 * i;
      mbarrier_init(barrier, kMaxOfOne, Where::current());
      const int left = arrivals - i * kMaxOfOne;
      for (int k = 0; k < std::min(left, kMaxOfOne); ++k) {
        mbarrier_arrive(barrier, Where::current());
      }
    }
  };
  try {
    launch(of({}, 32, body), {});
  } catch (const Fault &fault) {
    return fault.what();
  }
  return "";
}

long resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::strtol(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

}  // namespace

void scheduling() {
  std::printf("{\"orders\": [");
  for (uint64_t seed = 0; seed < 10; ++seed) {
    if (order(seed) != order(seed)) fail("the same seed gave two orders");
    std::printf("%s\"%s\"", seed ? ", " : "", order(seed).c_str());
  }
  std::printf("], \"first_fault\": [\"%s\", \"%s\"]", fault_of(1).c_str(), fault_of(4).c_str());
  const auto nothing = [] {};
  const Site missing{"barrier_sync", "nowhere.cpp", 1, 1};
  std::printf(", \"refused\": [\"%s\", \"%s\", \"%s\", \"%s\", \"%s\", \"%s\", \"%s\"]}\n",
              refusal_of(of({}, 48, nothing), {}).c_str(),
              refusal_of(of({}, 2048, nothing), {}).c_str(),
              refusal_of(of({1, 0, 1}, 32, nothing), {}).c_str(),
              refusal_of(of({3, 1, 1}, 32, nothing, 2), {}).c_str(),
              refusal_of(of({9, 1, 1}, 32, nothing, 9), {}).c_str(),
              refusal_of(of({}, 32, nullptr), {}).c_str(),
              refusal_of(of({}, 32, nothing), {.dropped = missing}).c_str());
}

// Tests nearly as many synchronisations as the race check can count, and more.
void many_synchronisations() {
  constexpr int kEpochs = 1 << 24;
  std::printf("[\"%s\", \"%s\"]\n", fault_of_arrivals(kEpochs - 8).c_str(),
              fault_of_arrivals(kEpochs).c_str());
}

// Runs enough blocks to show a leak, and enough synchronisations for the race check's epochs to
// restart.
void many_blocks() {
  constexpr unsigned kWarmUp = 2000, kBlocks = 100000;
  const auto body = [] {
    uint32_t word = thread_index();
    store_shared(shared_bytes() + thread_index() * 4, &word, 4);
    for (int i = 0; i < 24; ++i) warp_sync(Where::current());
    load_shared(&word, shared_bytes() + (thread_index() ^ 1) * 4, 4);
    if (word != (thread_index() ^ 1)) fail("thread %u read %u", thread_index(), word);
  };
  launch(of({kWarmUp, 1, 1}, 32, body), {.workers = 2});
  const long before = resident_kib();
  launch(of({kBlocks / 100, 100, 1}, 32, body), {.workers = 2});
  std::printf("{\"grown_kib\": %ld}\n", resident_kib() - before);
}

}  // namespace cases
