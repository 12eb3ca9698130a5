// A block: its fibers, its memory, and the rendezvous of its warps.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/cluster.h"
#include "emulator/fiber.h"
#include "emulator/global_memory.h"
#include "emulator/instruction.h"
#include "emulator/launch.h"
#include "emulator/mbarrier.h"
#include "emulator/named_barrier.h"
#include "emulator/shared_memory.h"
#include "emulator/tma.h"
#include "emulator/wgmma.h"

namespace flashsmith::emulator {

class Block;
struct Warp;

struct Thread {
  Fiber fiber;
  Block *block;
  Warp *warp;
  unsigned index, lane;
  const char *stack_limit;                   // an instruction below it reports an overflow
  const Mbarrier *waits_for = nullptr;       // the lane alone waits for this mbarrier, ...
  const uint32_t *waits_for_word = nullptr;  // ... or for this word in global memory
  bool polls_word = false;                   // and may go on without it
  Step waits_at;                             // the step at which it waits
  bool has_waited = true;                    // for the launch before, if this one overlaps it

  uint64_t in_grid() const;
};

// The thread whose fiber runs on this host thread. A fiber never moves to another host thread.
extern constinit thread_local Thread *self;

struct Copy {
  const void *source;
  uint32_t offset;  // in shared memory
  uint8_t lane, bytes;
  Instruction instruction;
};

struct Warp {
  unsigned index = 0, number = 0;  // in the cluster, for clocks; in the block
  Thread *threads = nullptr;       // its 32 threads
  uint32_t ready = 0, exited = 0;  // lanes that can proceed; lanes that have returned
  uint32_t arrived = 0;            // lanes at `step`, with arguments in `arguments`
  Step step;
  void *arguments[kLanes];
  Where last_site{};                // the last synchronisation passed, for messages
  std::vector<Copy> copies;         // in flight, oldest first
  std::vector<size_t> group_sizes;  // committed groups of `copies`, oldest first
  uint64_t ldmatrix_run = 0, mma_run = 0;
  bool retries = false;    // waits for something that other warps may have done since
  unsigned registers = 0;  // of a thread
};

class Block {
 public:
  Block(Cluster &cluster, unsigned rank);

  void start(uint64_t index);  // in grid order
  bool ended() const { return running_ == 0; }
  void finish();  // checks the state at the end of the block
  void fail(const Warp &warp, unsigned lane, const std::string &text);

  // Returns whether fault injection drops this site.
  bool drops(const Step &step);
  void passed(Warp &warp, const Step &step);  // records a synchronisation site
  std::vector<Warp> &warps() { return warps_; }
  void retry_waiting();  // lets waiting warps try again
  void wait_and_retry(Warp &warp);

  Cluster &cluster;
  const unsigned rank;  // in the cluster
  const Launch &launch;
  const Options &options;
  Clocks &clocks;
  SharedMemory shared;
  GlobalMemory global;
  Mbarriers mbarriers;
  NamedBarriers named_barriers;
  BulkStores stores;
  std::vector<Warpgroup> warpgroups;
  int free_registers = 0;  // of the block, not assigned to a thread
  Counters counters;
  Dim3 block_index;
  uint64_t index = 0;  // in grid order
  std::vector<Step> sites;
  bool dropped_one = false;

  // Refuses an arrival at a rendezvous on the scheduler's side; called by collective() below.
  [[noreturn]] static void refuse_arrival(Thread &thread, const Step &step);

 private:
  static void fiber_main();
  void exit(Thread &thread);

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Stacks stacks_;
  size_t running_ = 0;  // warps that have not returned
};

// Returns text like "warp 3 waits at ...".
std::string describe_waiting(const Warp &warp);

// Runs another ready lane of the warp, until the thread's own bit in `ready` is set again.
inline void suspend(Thread &thread) {
  Warp &warp = *thread.warp;
  warp.ready &= ~(1u << thread.lane);
  if (warp.ready == 0) return thread.block->cluster.yield(thread);
  Thread &next = warp.threads[std::countr_zero(warp.ready)];
  self = &next;
  switch_fiber(thread.fiber, next.fiber);
}

// The 32 lanes meet here; the last one to arrive runs operation(block, warp, arguments of the
// lanes) for all. An operation that clears warp.ready keeps the warp waiting until that is set
// again.
template <class Arguments, class Operation>
inline void collective(const Step &step, Arguments &arguments, Operation operation) {
  Thread &thread = *self;
  Warp &warp = *thread.warp;
  const bool overflow = static_cast<char *>(__builtin_frame_address(0)) < thread.stack_limit;
  if (warp.arrived == 0) warp.step = step;
  if (overflow || warp.exited != 0 || warp.step.key != step.key) [[unlikely]] {
    Block::refuse_arrival(thread, step);
  }
  warp.arguments[thread.lane] = &arguments;
  warp.arrived |= 1u << thread.lane;
  if (warp.arrived != kAllLanes) return suspend(thread);
  warp.arrived = 0;
  warp.ready = kAllLanes;
  thread.block->clocks.settle(warp.index);
  Arguments *lanes[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) lanes[i] = static_cast<Arguments *>(warp.arguments[i]);
  operation(*thread.block, warp, lanes);
  if (warp.ready == 0 || thread.block->cluster.preempts()) thread.block->cluster.yield(thread);
}

// Runs an operation like collective(), again and again as long as it returns false.
template <class Arguments, class Operation>
inline void collective_until(const Step &step, Arguments &arguments, Operation operation) {
  struct Attempt {
    Arguments *arguments;
    bool done;
  } attempt{&arguments, false};
  while (!attempt.done) {
    collective(step, attempt, [&operation](Block &block, Warp &warp, Attempt **lanes) {
      Arguments *arguments[kLanes];
      for (unsigned i = 0; i < kLanes; ++i) arguments[i] = lanes[i]->arguments;
      const bool done = operation(block, warp, arguments);
      for (unsigned i = 0; i < kLanes; ++i) lanes[i]->done = done;
      if (!done) block.wait_and_retry(warp);
    });
  }
}

// Refuses what a thread of a launch that overlaps the launch before must not do until it has waited
// for that one.
inline void must_have_waited(Instruction instruction) {
  if (self->has_waited) [[likely]]
    return;
  throw Problem{self->lane,
                "comes before wait_for_launch_before, and the launch overlaps the one before",
                instruction};
}

// Runs operation(block, thread) on one lane, whatever the other lanes of its warp do.
template <class Operation>
inline void alone(const Step &step, Operation operation) {
  Thread &thread = *self;
  try {
    operation(*thread.block, thread);
  } catch (Problem &problem) {
    problem.lane = thread.lane;
    problem.step = step;
    throw;
  }
  if (thread.block->cluster.preempts()) thread.block->cluster.yield(thread);
}

}  // namespace flashsmith::emulator
