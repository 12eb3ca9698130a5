#include "emulator/clocks.h"

#include <algorithm>

#include "emulator/instruction.h"

namespace flashsmith::emulator {

namespace {

constexpr unsigned kLanes = 32, kWarpsPerGroup = 4;

void raise(uint32_t *clock, const uint32_t *other, unsigned size) {
  for (unsigned i = 0; i < size; ++i) clock[i] = std::max(clock[i], other[i]);
}

bool exceeds(const uint32_t *clock, const uint32_t *other, unsigned size) {
  uint32_t later = 0;
  for (unsigned i = 0; i < size; ++i) later |= clock[i] > other[i];
  return later != 0;
}

}  // namespace

Clocks::Clocks(unsigned blocks, unsigned warps_per_block)
    : warps_(blocks * warps_per_block),
      groups_(blocks * (warps_per_block / kWarpsPerGroup)),
      size_(fixed() + blocks * kMaxBarriers),
      used_(fixed()),
      warps_state_(warps_),
      loads_(warps_),
      seen_(size_t{warps_} * size_),
      lanes_(new uint32_t[size_t{warps_} * kLanes * size_]),
      counts_(size_) {}

void Clocks::start() {
  // Epochs continue from cluster to cluster, so that shadows need not be cleared each time.
  uint32_t base = 0;
  for (const Warp &warp : warps_state_) base = std::max(base, warp.epoch);
  for (unsigned i = 0; i < used_; ++i) base = std::max(base, counts_[i]);
  restarted_ = base > kRestart;
  if (restarted_) base = 0;
  used_ = fixed();
  std::fill(seen_.begin(), seen_.end(), base);
  std::fill(counts_.begin(), counts_.end(), base);
  std::fill(warps_state_.begin(), warps_state_.end(), Warp{base + 1, 0, 0, 0});
  for (LoadsInFlight &loads : loads_) loads.start();
}

unsigned Clocks::add_barrier() {
  if (used_ == size_) throw Problem{0, "more mbarriers than the race check can tell apart"};
  return used_++;
}

void Clocks::merge(Published &into, const uint32_t *clock) const {
  into.resize(size_);
  raise(into.data(), clock, used_);
}

void Clocks::meet(Published &into, const uint32_t *clock) const {
  into.resize(size_, ~0u);
  for (unsigned i = 0; i < used_; ++i) into[i] = std::min(into[i], clock[i]);
}

uint32_t Clocks::end_epoch(unsigned warp) {
  const uint32_t ended = warps_state_[warp].epoch++;
  if (ended + 1 == kMaxEpoch) {
    throw Problem{0, "more synchronisations in one block than the race check can count"};
  }
  return ended;
}

const uint32_t *Clocks::seen(unsigned warp, unsigned lane) {
  if ((warps_state_[warp].ahead >> lane & 1) == 0) return row(warp);
  raise(lane_row(warp, lane), row(warp), used_);
  return lane_row(warp, lane);
}

uint32_t *Clocks::ahead_row(unsigned warp, unsigned lane) {
  uint32_t &ahead = warps_state_[warp].ahead;
  if ((ahead >> lane & 1) == 0) std::copy_n(row(warp), size_, lane_row(warp, lane));
  ahead |= 1u << lane;
  return lane_row(warp, lane);
}

void Clocks::settle_all(unsigned warp) {
  uint32_t *common = lane_row(warp, 0);
  Published all(common, common + used_);
  for (unsigned lane = 1; lane < kLanes; ++lane) {
    const uint32_t *mine = lane_row(warp, lane);
    for (unsigned i = 0; i < used_; ++i) all[i] = std::min(all[i], mine[i]);
  }
  raise(row(warp), all.data(), used_);
  uint32_t &ahead = warps_state_[warp].ahead;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!exceeds(lane_row(warp, lane), row(warp), used_)) ahead &= ~(1u << lane);
  }
}

void Clocks::join(unsigned warp) {
  uint32_t &ahead = warps_state_[warp].ahead;
  for (unsigned lane = 0; ahead != 0; ++lane, ahead >>= 1) {
    if (ahead & 1) raise(row(warp), lane_row(warp, lane), used_);
  }
}

void Clocks::synchronise(unsigned warp) {
  join(warp);
  row(warp)[warp] = row(warp)[collective(warp)] = end_epoch(warp);
  warps_state_[warp].unsynced = 0;
}

void Clocks::release(unsigned warp, Published &published) {
  const uint32_t ended = end_epoch(warp);
  merge(published, row(warp));
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (warps_state_[warp].ahead >> lane & 1) merge(published, lane_row(warp, lane));
  }
  published[warp] = published[collective(warp)] = ended;
  published[loaded(warp)] = loads_[warp].arrived(ended);
}

void Clocks::acquire(unsigned warp, const Published &published) {
  join(warp);
  raise(row(warp), published.data(), used_);
  warps_state_[warp].unsynced = 0;
}

void Clocks::acquire(unsigned warp, unsigned component, uint32_t epoch) {
  row(warp)[component] = std::max(row(warp)[component], epoch);
}

uint32_t Clocks::release(unsigned warp, unsigned lane, Published &published) {
  merge(published, seen(warp, lane));
  const uint32_t ended = end_epoch(warp);
  published[collective(warp)] = ended;
  published[loaded(warp)] = loads_[warp].arrived(ended);
  uint32_t &unsynced = warps_state_[warp].unsynced;
  unsynced &= ~(1u << lane);
  if (unsynced == 0) published[warp] = ended;
  return ended;
}

void Clocks::acquire(unsigned warp, unsigned lane, const Published &published) {
  if (published.empty() || !exceeds(published.data(), seen(warp, lane), used_)) return;
  raise(ahead_row(warp, lane), published.data(), used_);
}

void Clocks::acquire(unsigned warp, unsigned lane, unsigned component, uint32_t epoch) {
  if (seen(warp, lane)[component] < epoch) ahead_row(warp, lane)[component] = epoch;
}

bool Clocks::knows(unsigned warp, unsigned component, uint32_t epoch) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (seen(warp, lane)[component] >= epoch) return true;
  }
  return false;
}

void Clocks::fence(unsigned warp, unsigned lane) {
  loads_[warp].fence(lane);
  Warp &state = warps_state_[warp];
  if (state.unfenced != 0) {
    state.unfenced &= ~(1u << lane);
    // A lane fences the writes of all lanes if its warp has synchronised since they were made.
    if (state.unsynced == 0) state.unfenced = 0;
    if (state.unfenced == 0) row(warp)[fenced(warp)] = end_epoch(warp);
  }
  const uint32_t *mine = seen(warp, lane);
  if (!exceeds(mine, mine + fenced(0), warps_)) return;
  uint32_t *ahead = ahead_row(warp, lane);
  raise(ahead + fenced(0), ahead, warps_);
}

}  // namespace flashsmith::emulator
