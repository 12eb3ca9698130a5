// Launches during which one allocation of the calling thread fails, or every one from there on.
#include <atomic>
#include <new>

#include "cases.h"

namespace {

thread_local int allocations_until_failure = -1;  // negative: none fails
thread_local bool all_fail_then = false;

bool fails() {
  if (allocations_until_failure < 0) return false;
  if (allocations_until_failure == 0 && all_fail_then) return true;
  return allocations_until_failure-- == 0;
}

}  // namespace

void *operator new(std::size_t bytes) {
  void *memory = fails() ? nullptr : std::malloc(bytes);
  if (memory) return memory;
  throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

namespace cases {

// Prints how many of the launches were complete, and how many said that memory ran out. Each launch
// has more threads than the one before, so that its stacks are new ones and the list of those that
// are kept grows. Where all allocations fail, one worker makes certain that it grows then.
void want_of_memory() {
  constexpr int kLaunches = 40, kBlocks = 12, kThreads = 32, kMaxThreads = 1024;
  int complete = 0, refused = 0;
  for (const bool all : {true, false}) {
    for (int i = 0; i < kLaunches; ++i) {
      std::atomic<int> ran{0};
      const auto threads = static_cast<unsigned>(kThreads * i % kMaxThreads + kThreads);
      const Launch settings{.kernel = "starved",
                            .grid = {kBlocks, 1, 1},
                            .threads = threads,
                            .shared_memory_bytes = 1024,
                            .memory = {},
                            .body = [&] { ran += thread_index() == 0; }};
      try {
        all_fail_then = all;
        allocations_until_failure = i;
        launch(settings, {.workers = all ? 1 : 4});
        complete += ran == kBlocks;
      } catch (const std::bad_alloc &) {
        ++refused;
      }
      allocations_until_failure = -1;
    }
  }
  std::printf("{\"complete\": %d, \"refused\": %d}\n", complete, refused);
}

}  // namespace cases
