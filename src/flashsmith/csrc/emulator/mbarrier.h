// Barriers in shared memory that count arrivals and the bytes of bulk copies.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "emulator/clocks.h"
#include "emulator/instruction.h"
#include "emulator/tensor_map.h"

namespace flashsmith::emulator {

class Block;
struct Thread;

// A bulk copy to shared memory in flight: a box of a tensor, or contiguous bytes.
struct BulkLoad {
  TensorMap map{};
  int coordinates[kMaxTensorRank] = {};
  const void *row = nullptr;  // null: the box at the coordinates
  uint32_t offset = 0;        // in shared memory
  uint32_t bytes = 0;
  const Thread *issuer = nullptr;

  Instruction instruction() const { return row ? Instruction::bulk_load : Instruction::tma_load; }
};

struct Mbarrier {
  uint32_t offset;  // in shared memory
  unsigned count;
  unsigned component;  // of the clocks: the writes of its copies
  unsigned initialiser_warp, initialiser_lane;
  uint32_t initialised;      // epoch
  bool fenced = false;       // bulk copies may use it
  uint64_t phase = 0;        // the current phase
  unsigned pending = count;  // missing arrivals
  int64_t expected = 0;      // missing bytes, beyond those of `loads`
  std::vector<BulkLoad> loads{};
  std::vector<Thread *> waiters{};
  Clocks::Published arriving{}, completed{};  // the clocks that this and the last phase release

  std::string describe() const;
};

// The mbarriers of a block. A phase completes as late as a thread could tell: its copies land when
// a thread waits for them. Threads of the cluster's other blocks may arrive, and load with them.
class Mbarriers {
 public:
  explicit Mbarriers(Block &block) : block_(block) {}

  void start_block();
  void initialise(Thread &thread, uint32_t offset, unsigned count);
  void fence(const Thread &thread);
  void arrive(Thread &thread, uint32_t offset, int64_t bytes);
  void wait(Thread &thread, uint32_t offset, unsigned parity, const Step &step);
  // Begins a load that the barrier at `offset` counts.
  void load(Thread &thread, const BulkLoad &load, uint32_t offset);

  // Returns the first mbarrier with copies in flight, or nullptr.
  const Mbarrier *in_flight() const;
  // Returns a thread of another block that has arrived without the block's knowledge, or nullptr.
  const Thread *unseen_arrival() const;

 private:
  struct Arrival {
    const Thread *thread;
    uint32_t epoch;
  };

  Mbarrier &find(const Thread &thread, uint32_t offset);
  void advance(Mbarrier &barrier);  // completes the phase if nothing is missing
  void expect(Mbarrier &barrier, int64_t bytes);

  Block &block_;
  std::deque<Mbarrier> barriers_;
  std::map<unsigned, Arrival> remote_arrivals_;  // the last arrival of each warp of another block
};

}  // namespace flashsmith::emulator
