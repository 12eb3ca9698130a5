#include "emulator/named_barrier.h"

#include "emulator/block.h"

namespace flashsmith::emulator {

void NamedBarriers::start_block() {
  for (Barrier &barrier : barriers_) {
    barrier.expected = barrier.arrived = 0;
    barrier.waiting.clear();
    barrier.clock.clear();
  }
}

void NamedBarriers::arrive(Warp &warp, unsigned id, unsigned threads, bool wait) {
  Barrier &barrier = barriers_[id];
  if (barrier.arrived == 0) barrier.expected = threads;
  if (barrier.expected != threads) {
    throw Problem{0, "barrier " + std::to_string(id) + " for " + std::to_string(threads) +
                         " threads, but others have arrived at it for " +
                         std::to_string(barrier.expected)};
  }
  block_.clocks.release(warp.index, barrier.clock);
  barrier.arrived += kLanes;
  if (wait) {
    barrier.waiting.push_back(&warp);
    warp.ready = 0;
  }
  if (barrier.arrived < barrier.expected) return;
  for (Warp *waiting : barrier.waiting) {
    block_.clocks.acquire(waiting->index, barrier.clock);
    waiting->ready = kAllLanes;
  }
  barrier.arrived = 0;
  barrier.waiting.clear();
  barrier.clock.clear();
  ++(id == 0 ? block_.counters.barriers : block_.counters.named_barriers);
}

unsigned NamedBarriers::unfinished() const {
  unsigned id = 0;
  while (id < kBarriers && barriers_[id].arrived == 0) ++id;
  return id;
}

}  // namespace flashsmith::emulator
