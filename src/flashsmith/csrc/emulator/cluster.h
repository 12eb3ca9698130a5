// One cluster of blocks at a time on one host thread: their scheduler, clocks and common barrier. A
// kernel launched without clusters runs in clusters of one block.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "emulator/clocks.h"
#include "emulator/fiber.h"
#include "emulator/global_order.h"
#include "emulator/launch.h"

namespace flashsmith::emulator {

class Block;
struct Thread;
struct Warp;

class Cluster {
 public:
  Cluster(const Launch &launch, const Options &options, GlobalOrder &order);
  ~Cluster();
  Cluster(const Cluster &) = delete;
  Cluster &operator=(const Cluster &) = delete;

  // Runs the cluster `index`, in grid order, to its end.
  void run(uint64_t index);

  const std::vector<std::unique_ptr<Block>> &blocks() const { return blocks_; }
  // Returns the block whose shared memory the thread is about to use.
  Block &peer(const Thread &thread, int rank) const;

  // The cluster's barrier: a warp waits until all warps that have not returned have arrived.
  void arrive(Warp &warp);
  void warp_returned();

  // Waits until a word in global memory has the value, and learns what its writer knew.
  void wait_for_word(Thread &thread, const uint32_t *word, uint32_t value);
  // Returns the word, and learns as much. Waits before, once, if the word has the known value, and
  // returns that one if no block can change it.
  uint32_t poll_word(Thread &thread, const uint32_t *word, uint32_t known);

  void yield(Thread &thread);                     // to the scheduler
  bool preempts() { return random() % 32 == 0; }  // lets other warps overtake now and then
  void fail(std::exception_ptr failure) { failure_ = std::move(failure); }
  bool failed() const { return failure_ != nullptr; }

  const Launch &launch;
  const Options &options;
  Clocks clocks;
  GlobalOrder &order;  // of the grid; shared by all clusters

 private:
  void start(uint64_t index);
  void resume(Warp &warp);
  void rethrow_failure();
  void retry_words();
  void wait_at_word(Thread &thread, const uint32_t *word, uint64_t version);
  bool end_polls();  // returns whether there are any
  void release_all_if_complete();
  [[noreturn]] void report_deadlock();
  uint64_t random() {  // splitmix64
    uint64_t z = random_state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }

  std::vector<std::unique_ptr<Block>> blocks_;  // by rank
  Fiber scheduler_;
  uint64_t random_state_ = 0;
  std::exception_ptr failure_;
  size_t live_ = 0;              // warps that have not returned
  std::vector<Warp *> arrived_;  // at the barrier
  Clocks::Published clock_;      // the clock that they release
  std::vector<Thread *> word_waiters_;
  uint64_t words_version_ = 0;  // when the first of them read its word
};

}  // namespace flashsmith::emulator
