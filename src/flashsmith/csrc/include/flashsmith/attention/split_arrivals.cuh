// Splits of a work tile that wait for each other, and combine a share of their partial results
// each.
//
// A split waits for a bounded time, because other work on the GPU may keep a block from beginning.
// If one gives up, the last one to arrive combines everything. Who combines changes no bit.
#pragma once

#include "flashsmith/decode_params.h"
#include "flashsmith/ptx/global_wait.cuh"

namespace flashsmith {

// A split combines its own share of the partial results, all of them, or nothing.
enum class Combines : uint32_t { nothing, own_share, everything };

// Its functions are called by one thread.
class SplitArrivals {
  // The counter has the numbers of the splits that wait, or have waited, for all others to arrive;
  // of those that gave up before; and of the former that need the counter no more. The last of
  // these clears it. Once all have arrived, the first two numbers do not change any more. A work
  // tile has at most as many splits as the GPU has SMs, of which none has more than kOnes.
  static constexpr int kBits = 8;
  static constexpr uint32_t kOnes = (1 << kBits) - 1;
  static constexpr uint32_t kWaits = 1, kGaveUp = 1 << kBits, kIsDone = 1 << 2 * kBits;

  uint32_t *const counter_;
  const uint32_t splits_;
  const int polls_;
  bool has_waited_ = false;

  static FLASHSMITH_DEVICE uint32_t waiting(uint32_t value) { return value & kOnes; }
  static FLASHSMITH_DEVICE uint32_t gave_up(uint32_t value) { return value / kGaveUp & kOnes; }
  FLASHSMITH_DEVICE bool all_arrived(uint32_t value) const {
    return waiting(value) + gave_up(value) == splits_;
  }

  // Returns the counter when all have arrived, or a value in which they have not, if the split has
  // given up. `value`: an earlier one.
  FLASHSMITH_DEVICE uint32_t after_all(uint32_t value) const {
    for (int i = 0; i < polls_ && !all_arrived(value); i++) {
      value = ptx::thread_poll_global(counter_, value);  // for speed alone
    }
    while (!all_arrived(value)) {
      const uint32_t before = ptx::thread_replace_global(counter_, value, value - kWaits + kGaveUp);
      if (before == value) break;
      value = before;
    }
    return value;
  }

 public:
  // `splits`: of the work tile. `polls`: as SplitArgs has it.
  FLASHSMITH_DEVICE SplitArrivals(uint32_t *counter, int splits, int polls)
      : counter_(counter), splits_(static_cast<uint32_t>(splits)), polls_(polls) {}

  // Counts a split whose partial results are stored, as all its threads know, and returns the
  // counter.
  FLASHSMITH_DEVICE uint32_t arrive() const {
    return ptx::thread_add_global(counter_, kWaits) + kWaits;
  }

  // Waits for the other splits, and returns what this one combines. `at_arrival`: what `arrive`
  // returned.
  FLASHSMITH_DEVICE Combines wait(uint32_t at_arrival) {
    const uint32_t value = after_all(at_arrival);
    has_waited_ = all_arrived(value);
    if (!has_waited_) return Combines::nothing;
    if (gave_up(value) == 0) return Combines::own_share;
    return all_arrived(at_arrival) ? Combines::everything : Combines::nothing;
  }

  // Has to follow, whatever the split combines: tells that it needs the counter no more. Returns
  // the counter before. No data depend on it, so it is relaxed: a release would wait for all that
  // the block has stored.
  FLASHSMITH_DEVICE uint32_t leave() const {
    return has_waited_ ? ptx::thread_atomic_add(counter_, kIsDone) : 0;
  }

  // Clears the counter if the split was the last to leave. `before`: what `leave` returned, for
  // which this waits.
  FLASHSMITH_DEVICE void clear_after_all(uint32_t before) const {
    if (!has_waited_) return;
    if (before / kIsDone + 1 == waiting(before)) ptx::thread_store_global_4(counter_, 0);
  }
};

}  // namespace flashsmith
