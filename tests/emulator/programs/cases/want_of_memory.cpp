// Launches during which one allocation of the calling thread fails.
#include <atomic>
#include <new>

#include "cases.h"

namespace {

thread_local int allocations_until_failure = -1;  // negative: none fails

}  // namespace

void *operator new(std::size_t bytes) {
  if (allocations_until_failure >= 0 && allocations_until_failure-- == 0) throw std::bad_alloc();
  if (void *memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

namespace cases {

// Prints how many of the launches were complete, and how many said that memory ran out.
void want_of_memory() {
  constexpr int kLaunches = 40, kBlocks = 12;
  int complete = 0, refused = 0;
  for (int i = 0; i < kLaunches; ++i) {
    std::atomic<int> ran{0};
    const Launch settings{.kernel = "starved",
                          .grid = {kBlocks, 1, 1},
                          .threads = 32,
                          .shared_memory_bytes = 1024,
                          .memory = {},
                          .body = [&] { ran += thread_index() == 0; }};
    try {
      allocations_until_failure = i;
      launch(settings, {.workers = 4});
      complete += ran == kBlocks;
    } catch (const std::bad_alloc &) {
      ++refused;
    }
    allocations_until_failure = -1;
  }
  std::printf("{\"complete\": %d, \"refused\": %d}\n", complete, refused);
}

}  // namespace cases
