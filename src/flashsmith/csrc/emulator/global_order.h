// The order in global memory, over all blocks of a grid: words by which a thread releases to
// others, and the bulk copies that must come before or after one another.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace flashsmith::emulator {

class GlobalOrder {
 public:
  // `workers`: host threads that run blocks.
  explicit GlobalOrder(uint64_t workers) : running_(workers) {}

  // ---- bulk copies ----

  // Two additions, or two loads, may come in any order; other pairs conflict.
  enum class Use : uint8_t { load, store, add };

  // Begins a copy of `thread` (in the grid). Returns its number, or sets `conflict` to a message
  // about a copy of the same bytes that is not ordered before it.
  uint64_t begin(uint64_t thread, const void *bytes, size_t size, Use use, std::string &conflict);
  // Records that the thread's copies up to this one are in memory, as the thread knows.
  void complete(uint64_t thread, uint64_t copy);
  // Orders later bulk copies of the thread after what it knows.
  void fence(uint64_t thread);

  // ---- words ----

  // Writes the word; a thread that reads this value learns what the writer knows.
  void release(uint64_t thread, uint32_t *word, uint32_t value);
  // Adds to the word, and returns the value before; the thread learns what those that added before
  // it know, and a thread that reads the sum what all of them know.
  uint32_t arrive(uint64_t thread, uint32_t *word, uint32_t amount);
  // Replaces the word if it has the expected value, and returns the value before. The thread learns
  // as by `arrive`, and hands on if it replaced the word.
  uint32_t replace(uint64_t thread, uint32_t *word, uint32_t expected, uint32_t value);
  // Returns the word, whose writers' knowledge the thread learns, and sets the version at which it
  // was read.
  uint32_t read(uint64_t thread, const uint32_t *word, uint64_t &version);
  // Returns whether the word has the value, and sets the version at which it was read.
  bool acquire(uint64_t thread, const uint32_t *word, uint32_t value, uint64_t &version);

  // Returns how often any word was written.
  uint64_t version();
  // Waits until the version changes, because a worker's blocks cannot proceed before. Returns false
  // if no worker can proceed; if some `poll`, only these return, which may proceed without it.
  bool wait_beyond(uint64_t version, bool polls);
  void worker_ended();
  // Ends all waits of workers; wait_beyond throws Abandoned.
  void abandon();
  struct Abandoned {};

 private:
  using Clock = std::unordered_map<uint64_t, uint64_t>;  // [thread]: its last known copy

  struct Thread {
    uint64_t copies = 0;  // begun
    Clock known, fenced;  // by ordinary accesses; by bulk copies
  };
  struct Copy {
    uint64_t thread, number;
    Use use;
  };
  struct Range {
    uintptr_t end;
    std::vector<Copy> copies;  // that later copies must know
  };

  static void merge(Clock &into, const Clock &other);
  static bool knows(const Clock &clock, const Copy &copy);
  static bool conflicts(Use one, Use other);
  void check(const Thread &by, uintptr_t begin, uintptr_t end, Use use, std::string &conflict);
  void has_written();
  void stop_if_stuck();

  std::mutex mutex_;
  std::unordered_map<uint64_t, Thread> threads_;
  std::map<uintptr_t, Range> ranges_;  // [first byte]
  uintptr_t longest_ = 0;              // of a range
  std::unordered_map<const uint32_t *, Clock> words_;

  std::condition_variable written_;
  uint64_t version_ = 0, running_, waiting_ = 0, polling_ = 0;
  bool stuck_ = false, polls_end_ = false, abandoned_ = false;
};

}  // namespace flashsmith::emulator
