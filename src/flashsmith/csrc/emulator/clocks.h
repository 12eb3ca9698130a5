// The order of accesses: vector clocks (happens-before, as in FastTrack).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/loads.h"

namespace flashsmith::emulator {

// Warps are those of all blocks of a cluster. Each counts epochs; an epoch ends when the warp, or a
// lane of it, synchronises. An access is identified by the epoch in which it happened and the
// component of the clock that orders it:
//
//    w              accesses of single lanes of warp w, and its stmatrix. What a warp does is
//                   ordered after all of these in epochs up to seen(warp)[w]; for its own
//                   component, up to the last time that it synchronised as a whole.
//    collective(w)  reads of warp w as a whole (ldmatrix). Any lane can release these.
//    fenced(w)      generic writes of warp w that a proxy fence has made visible to bulk copies
//                   and wgmma.
//    loaded(w)      generic reads of warp w that have certainly been performed (see
//                   LoadsInFlight): only these come before the writes of bulk copies.
//    tensor(g)      reads of shared memory by wgmma of warpgroup g.
//    store(w)       reads of shared memory by bulk stores that warp w has issued.
//    barrier(i)     writes of shared memory by bulk copies that mbarrier i covers.
//
// A lane that synchronises alone (an mbarrier wait, a fence) is ahead of its warp, until the warp
// synchronises or all its lanes know the same.
class Clocks {
 public:
  Clocks(unsigned blocks, unsigned warps_per_block);

  static constexpr uint32_t kMaxEpoch = (1u << 24) - 1;  // fits the shadow of a read
  static constexpr uint32_t kRestart = 1u << 20;         // leaves enough epochs for a cluster
  static constexpr unsigned kMaxBarriers = 64;           // of a block

  void start();
  bool restarted() const { return restarted_; }  // this cluster's epochs began at 1 again
  unsigned warps() const { return warps_; }

  unsigned collective(unsigned warp) const { return warps_ + warp; }
  unsigned fenced(unsigned warp) const { return 2 * warps_ + warp; }
  unsigned loaded(unsigned warp) const { return 3 * warps_ + warp; }
  unsigned tensor(unsigned group) const { return 4 * warps_ + group; }
  unsigned store(unsigned warp) const { return 4 * warps_ + groups_ + warp; }
  unsigned add_barrier();  // returns its component; throws a Problem if there are too many

  // The following functions, indexed by component, return the epoch up to which accesses are
  // ordered before what the warp does now, or what a lane of it does alone.
  const uint32_t *seen(unsigned warp) const { return &seen_[size_t{warp} * size_]; }
  const uint32_t *seen(unsigned warp, unsigned lane);
  uint32_t now(unsigned warp) const { return warps_state_[warp].epoch; }
  uint32_t next(unsigned component) { return ++counts_[component]; }  // for tensor, store, barrier
  uint32_t epoch(unsigned component) const { return counts_[component]; }

  // Records that single lanes of the warp have accessed shared memory.
  void accessed(unsigned warp, uint32_t lanes) { warps_state_[warp].unsynced |= lanes; }
  void wrote(unsigned warp, uint32_t lanes) {
    warps_state_[warp].unsynced |= lanes;
    warps_state_[warp].unfenced |= lanes;
  }

  // loads returns the warp's loads from shared memory, and arrived the last epoch whose loads have
  // all been performed.
  LoadsInFlight &loads(unsigned warp) { return loads_[warp]; }
  uint32_t arrived(unsigned warp) const { return loads_[warp].arrived(now(warp)); }

  // A clock that travels with a synchronisation object: arrivals publish it, and waiters learn it.
  using Published = std::vector<uint32_t>;

  // The following functions synchronise the warp as a whole.
  void synchronise(unsigned warp);
  void release(unsigned warp, Published &published);
  void acquire(unsigned warp, const Published &published);
  void acquire(unsigned warp, unsigned component, uint32_t epoch);
  void settle(unsigned warp) {  // the warp knows what all its lanes know
    if (warps_state_[warp].ahead == ~0u) settle_all(warp);
  }

  // The following functions synchronise one lane of the warp.
  uint32_t release(unsigned warp, unsigned lane, Published &published);  // ends an epoch
  void acquire(unsigned warp, unsigned lane, const Published &published);
  void acquire(unsigned warp, unsigned lane, unsigned component, uint32_t epoch);
  bool knows(unsigned warp, unsigned component, uint32_t epoch);  // in any lane
  void fence(unsigned warp, unsigned lane);

  void merge(Published &into, const uint32_t *clock) const;  // the later epoch of each component
  void meet(Published &into, const uint32_t *clock) const;   // the earlier epoch of each component

 private:
  struct Warp {
    uint32_t epoch;     // the current epoch
    uint32_t ahead;     // lanes that know more than their warp
    uint32_t unsynced;  // lanes with accesses since the warp synchronised
    uint32_t unfenced;  // lanes with generic writes that no proxy fence covers
  };

  uint32_t end_epoch(unsigned warp);  // returns the epoch that ends
  uint32_t *row(unsigned warp) { return &seen_[size_t{warp} * size_]; }
  uint32_t *ahead_row(unsigned warp, unsigned lane);
  uint32_t *lane_row(unsigned warp, unsigned lane) {
    constexpr unsigned kLanes = 32;
    return &lanes_[(size_t{warp} * kLanes + lane) * size_];
  }
  void settle_all(unsigned warp);
  void join(unsigned warp);

  // Returns the number of components that do not belong to mbarriers.
  unsigned fixed() const { return 5 * warps_ + groups_; }

  unsigned warps_, groups_, size_;
  unsigned used_;                      // components that this cluster has
  std::vector<Warp> warps_state_;      // [warp]
  std::vector<LoadsInFlight> loads_;   // [warp]
  std::vector<uint32_t> seen_;         // [warp][component]
  std::unique_ptr<uint32_t[]> lanes_;  // [warp][lane][component], of the lanes that are ahead
  std::vector<uint32_t> counts_;       // [component]: epochs that no warp counts
  bool restarted_ = true;
};

}  // namespace flashsmith::emulator
