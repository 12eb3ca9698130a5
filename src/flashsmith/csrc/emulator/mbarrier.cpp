#include "emulator/mbarrier.h"

#include "emulator/block.h"
#include "emulator/tma.h"

namespace flashsmith::emulator {

std::string Mbarrier::describe() const {
  return "the mbarrier at shared-memory offset " + std::to_string(offset) + " (phase " +
         std::to_string(phase) + " lacks " + std::to_string(pending) + " of " +
         std::to_string(count) + " arrivals and " + std::to_string(expected) + " bytes)";
}

void Mbarriers::start_block() {
  barriers_.clear();
  remote_arrivals_.clear();
}

void Mbarriers::initialise(Thread &thread, uint32_t offset, unsigned count) {
  const unsigned warp = thread.warp->index, lane = thread.lane;
  block_.shared.reserve_barrier({warp, Instruction::mbarrier_init}, lane, offset);
  barriers_.push_back({.offset = offset,
                       .count = count,
                       .component = block_.clocks.add_barrier(),
                       .initialiser_warp = warp,
                       .initialiser_lane = lane,
                       .initialised = block_.clocks.now(warp)});
}

void Mbarriers::fence(const Thread &thread) {
  for (Mbarrier &barrier : barriers_) {
    barrier.fenced |=
        barrier.initialiser_warp == thread.warp->index && barrier.initialiser_lane == thread.lane;
  }
}

Mbarrier &Mbarriers::find(const Thread &thread, uint32_t offset) {
  for (Mbarrier &barrier : barriers_) {
    if (barrier.offset != offset) continue;
    const unsigned warp = barrier.initialiser_warp;
    const bool own = warp == thread.warp->index && barrier.initialiser_lane == thread.lane;
    if (!own && barrier.initialised > block_.clocks.seen(thread.warp->index, thread.lane)[warp]) {
      throw Problem{thread.lane, "race: not ordered after mbarrier_init at shared-memory offset " +
                                     std::to_string(offset) +
                                     (thread.block == &block_
                                          ? " (needs a barrier_sync between)"
                                          : " of another block (needs a cluster_sync between)")};
    }
    advance(barrier);
    return barrier;
  }
  throw Problem{thread.lane,
                "no mbarrier_init has run at shared-memory offset " + std::to_string(offset)};
}

void Mbarriers::advance(Mbarrier &barrier) {
  if (barrier.pending != 0 || barrier.expected > 0) return;
  if (barrier.expected < 0) {
    throw Problem{0, std::to_string(-barrier.expected) +
                         " bytes more than expected are copied to " + barrier.describe()};
  }
  if (!barrier.loads.empty()) {
    const uint32_t epoch = block_.clocks.next(barrier.component);
    for (const BulkLoad &load : barrier.loads) land(block_, load, barrier.component, epoch);
    barrier.loads.clear();
    barrier.arriving[barrier.component] = epoch;
  }
  // Arrivals of one phase come after those of the previous phases.
  block_.clocks.merge(barrier.completed, barrier.arriving.data());
  ++barrier.phase;
  barrier.pending = barrier.count;
  for (Thread *waiter : barrier.waiters) waiter->warp->ready |= 1u << waiter->lane;
  barrier.waiters.clear();
}

void Mbarriers::expect(Mbarrier &barrier, int64_t bytes) {
  constexpr int64_t kLimit = (1 << 20) - 1;
  barrier.expected += bytes;
  if (barrier.expected > kLimit || barrier.expected < -kLimit) {
    throw Problem{0, "the transaction count leaves its range of 2^20 - 1 in " + barrier.describe()};
  }
}

void Mbarriers::arrive(Thread &thread, uint32_t offset, int64_t bytes) {
  Mbarrier &barrier = find(thread, offset);
  if (barrier.pending == 0) throw Problem{0, "one arrival too many in " + barrier.describe()};
  expect(barrier, bytes);
  const unsigned warp = thread.warp->index;
  const uint32_t epoch = block_.clocks.release(warp, thread.lane, barrier.arriving);
  if (thread.block != &block_) remote_arrivals_[warp] = {&thread, epoch};
  --barrier.pending;
  if (!barrier.waiters.empty()) advance(barrier);
}

void Mbarriers::wait(Thread &thread, uint32_t offset, unsigned parity, const Step &step) {
  Mbarrier &barrier = find(thread, offset);
  // Checks the phase again each time, as a loop over try_wait does.
  for (; (barrier.phase & 1) == parity; advance(barrier)) {
    barrier.waiters.push_back(&thread);
    thread.waits_for = &barrier;
    thread.waits_at = step;
    suspend(thread);
    thread.waits_for = nullptr;
  }
  block_.clocks.acquire(thread.warp->index, thread.lane, barrier.completed);
}

void Mbarriers::load(Thread &thread, const BulkLoad &load, uint32_t offset) {
  Mbarrier &barrier = find(thread, offset);
  const unsigned warp = thread.warp->index, lane = thread.lane;
  if (!barrier.fenced) {
    throw Problem{lane,
                  "no fence_mbarrier_init has made it known to bulk copies: " + barrier.describe()};
  }
  block_.shared.begin_copy({.component = barrier.component,
                            .epoch = 0,
                            .ordered = block_.clocks.seen(warp, lane),
                            .instruction = load.instruction(),
                            .warp = warp,
                            .lane = lane},
                           load.offset, load.bytes);
  barrier.loads.push_back(load);
  barrier.loads.back().issuer = &thread;
  expect(barrier, -int64_t{load.bytes});
  if (!barrier.waiters.empty()) advance(barrier);
}

const Mbarrier *Mbarriers::in_flight() const {
  for (const Mbarrier &barrier : barriers_) {
    if (!barrier.loads.empty()) return &barrier;
  }
  return nullptr;
}

const Thread *Mbarriers::unseen_arrival() const {
  for (const auto &[warp, arrival] : remote_arrivals_) {
    bool seen = false;
    for (const Warp &own : block_.warps()) {
      seen |= block_.clocks.knows(own.index, block_.clocks.collective(warp), arrival.epoch);
    }
    if (!seen) return arrival.thread;
  }
  return nullptr;
}

}  // namespace flashsmith::emulator
