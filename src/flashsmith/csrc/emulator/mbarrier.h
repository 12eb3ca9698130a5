// Barriers in shared memory that count arrivals and the bytes of bulk copies.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "emulator/clocks.h"
#include "emulator/tensor_map.h"

namespace flashsmith::emulator {

class Block;
struct Step;
struct Thread;

// A bulk copy to shared memory in flight.
struct BulkLoad {
  TensorMap map;
  int coordinates[kMaxTensorRank];
  uint32_t offset;  // in shared memory
  unsigned warp, lane;
};

struct Mbarrier {
  uint32_t offset;  // in shared memory
  unsigned count;
  unsigned component;  // of the clocks: the writes of its copies
  unsigned initialiser_warp, initialiser_lane;
  uint32_t initialised;      // epoch
  bool fenced = false;       // bulk copies may name it
  uint64_t phase = 0;        // the one under way
  unsigned pending = count;  // arrivals that it lacks
  int64_t expected = 0;      // bytes that it lacks, beyond those of `loads`
  std::vector<BulkLoad> loads{};
  std::vector<Thread *> waiters{};
  Clocks::Published arriving{}, completed{};  // what this and the last phase release

  std::string describe() const;
};

// A phase completes as late as anyone could tell: its copies land when a thread waits for them.
class Mbarriers {
 public:
  explicit Mbarriers(Block &block) : block_(block) {}

  void start_block() { barriers_.clear(); }
  void initialise(Thread &thread, void *address, unsigned count);
  void fence(const Thread &thread);
  void arrive(Thread &thread, void *address, int64_t bytes);
  void wait(Thread &thread, void *address, unsigned parity, const Step &step);
  void load(Thread &thread, void *shared, const TensorMap &map, void *address,
            const int *coordinates);

  // The first that has copies in flight, or nullptr.
  const Mbarrier *in_flight() const;

 private:
  Mbarrier &find(Thread &thread, void *address);
  void advance(Mbarrier &barrier);  // completes the phase if nothing is lacking
  void expect(Mbarrier &barrier, int64_t bytes);

  Block &block_;
  std::deque<Mbarrier> barriers_;
};

}  // namespace flashsmith::emulator
