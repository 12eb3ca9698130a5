// Turns with the tensor cores, which go round the warpgroups, so that one's softmax lies under the
// products of the others.
//
// A turn ends when products are issued. Those of 8 bits take so little time that warpgroups would
// follow one another closely, and compete for the units of the exponentials: with long_turns a turn
// in the loop lasts until the exponentials begin. Every wait needs its pass, or all wait for ever.
//
// Whoever has a turn waits for one thing that others decide about: V of the block before. Its
// buffer is that of a block n_stages earlier, whose turns are over: to release it takes no other.
#pragma once

#include "flashsmith/ptx/named_barrier.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
class Turns {
  static constexpr bool kArePresent = Traits::config.ping_pong;
  static constexpr bool kAreLong = Traits::config.long_turns;
  static constexpr int kFirst = 1;  // named barrier of the first warpgroup's turn
  static constexpr int kThreads = 2 * kWarpgroupSize;  // that wait and that pass

  const int warpgroup_;

 public:
  FLASHSMITH_DEVICE explicit Turns(int warpgroup) : warpgroup_(warpgroup) {}

  // Someone has to pass the first turn, and to wait for the last, as nobody else does.
  FLASHSMITH_DEVICE void begin() const {
    if constexpr (kArePresent) {
      if (warpgroup_ == 0) pass_from(Traits::n_warpgroups - 1);
    }
  }
  FLASHSMITH_DEVICE void end() const {
    if constexpr (kArePresent) {
      if (warpgroup_ == 0) wait();
    }
  }

  FLASHSMITH_DEVICE void wait() const {
    if constexpr (kArePresent) ptx::named_barrier_sync(kFirst + warpgroup_, kThreads);
  }
  FLASHSMITH_DEVICE void pass() const {
    if constexpr (kArePresent) pass_from(warpgroup_);
  }

  // In the loop: when both products are issued, or when the first row's reference is known.
  FLASHSMITH_DEVICE void pass_when_issued() const {
    if constexpr (!kAreLong) pass();
  }
  FLASHSMITH_DEVICE void pass_when_known(float reference) const {
    if constexpr (kAreLong) {
      ptx::named_barrier_arrive(ptx::when_known(reference, next(warpgroup_)), kThreads);
    }
  }

 private:
  static FLASHSMITH_DEVICE int next(int warpgroup) {
    return kFirst + (warpgroup + 1) % Traits::n_warpgroups;
  }
  static FLASHSMITH_DEVICE void pass_from(int warpgroup) {
    ptx::named_barrier_arrive(next(warpgroup), kThreads);
  }
};

}  // namespace flashsmith::sm90
