// Order in global memory, over all blocks of a grid: words by which a thread hands on to others,
// and the bulk copies that must come before or after one another.
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
  // workers: host threads that run blocks.
  explicit GlobalOrder(uint64_t workers) : running_(workers) {}

  // ---- bulk copies ----

  // Sums may be added in any order; of all others, one of the two writes.
  enum class Use : uint8_t { load, store, add };

  // A copy of `thread` (of the grid) begins. Returns its number, or says in `conflict` which copy
  // of the same bytes is not ordered before it.
  uint64_t begin(uint64_t thread, const void *bytes, size_t size, Use use, std::string &conflict);
  // The thread knows that its copies up to this one are in memory.
  void complete(uint64_t thread, uint64_t copy);
  // Bulk copies of the thread come after what it knows.
  void fence(uint64_t thread);

  // ---- words ----

  // Writes the word; who finds this value knows what the thread knows.
  void release(uint64_t thread, uint32_t *word, uint32_t value);
  // Whether the word has the value; and when it was looked at.
  bool acquire(uint64_t thread, const uint32_t *word, uint32_t value, uint64_t &version);

  // How often any word was written.
  uint64_t version();
  // A worker's blocks cannot go on until that is no longer `version`. False: no worker's can.
  bool wait_beyond(uint64_t version);
  void worker_ended();
  // No worker waits any longer; wait_beyond throws Abandoned.
  void abandon();
  struct Abandoned {};

 private:
  using Clock = std::unordered_map<uint64_t, uint64_t>;  // [thread]: its last copy that is known

  struct Thread {
    uint64_t copies = 0;  // begun
    Clock known, fenced;  // by ordinary accesses, by bulk copies
  };
  struct Copy {
    uint64_t thread, number;
    Use use;
  };
  struct Range {
    uintptr_t end;
    std::vector<Copy> copies;  // that others must know
  };

  static void merge(Clock &into, const Clock &other);
  static bool knows(const Clock &clock, const Copy &copy);
  static bool conflicts(Use one, Use other);
  void check(const Thread &by, uintptr_t begin, uintptr_t end, Use use, std::string &conflict);
  void stop_if_stuck();

  std::mutex mutex_;
  std::unordered_map<uint64_t, Thread> threads_;
  std::map<uintptr_t, Range> ranges_;  // [first byte]
  uintptr_t longest_ = 0;              // of a range
  std::unordered_map<const uint32_t *, Clock> words_;

  std::condition_variable written_;
  uint64_t version_ = 0, running_, waiting_ = 0;
  bool stuck_ = false, abandoned_ = false;
};

}  // namespace flashsmith::emulator
