// Turns with the tensor cores, which go round the warpgroups, so that one's softmax lies under the
// products of the others.
//
// A turn ends when products are issued. Those of 8 bits take so little time that warpgroups would
// follow one another closely, and compete for the units of the exponentials: with long turns a turn
// in the forward's loop lasts until the exponentials begin. Every wait needs its pass, or all wait
// for ever.
//
// Whoever has a turn of the forward waits for one thing that others decide about: V of the block
// before. Its buffer is that of a block n_stages earlier, whose turns are over: to release it takes
// no other.
#pragma once

#include "flashsmith/params.h"
#include "flashsmith/sm90/named_barrier.cuh"

namespace flashsmith::sm90 {

template <int kWarpgroups, bool kTakeTurns, bool kUntilExp = false>
class WarpgroupScheduler {
  static constexpr int kThreads = 2 * kWarpgroupSize;  // that wait and that pass

  const int warpgroup_;

 public:
  FLASHSMITH_DEVICE explicit WarpgroupScheduler(int warpgroup) : warpgroup_(warpgroup) {}

  // Someone has to pass the first turn, and to wait for the last, as nobody else does. The last
  // warpgroup may as well pass the first, in place of begin.
  FLASHSMITH_DEVICE void begin() const {
    if constexpr (kTakeTurns) {
      if (warpgroup_ == 0) ptx::named_barrier_arrive(turn_of(0), kThreads);
    }
  }
  FLASHSMITH_DEVICE void end() const {
    if constexpr (kTakeTurns) {
      if (warpgroup_ == 0) wait();
    }
  }

  FLASHSMITH_DEVICE void wait() const {
    if constexpr (kTakeTurns) ptx::named_barrier_sync(turn_of(warpgroup_), kThreads);
  }
  FLASHSMITH_DEVICE void pass() const {
    if constexpr (kTakeTurns) ptx::named_barrier_arrive(next_turn(), kThreads);
  }

  // In the forward's loop: when both products are issued, or when the first row's reference is
  // known.
  FLASHSMITH_DEVICE void pass_when_issued() const {
    if constexpr (!kUntilExp) pass();
  }
  FLASHSMITH_DEVICE void pass_when_known(float reference) const {
    if constexpr (kUntilExp) {
      ptx::named_barrier_arrive(ptx::when_known(reference, next_turn()), kThreads);
    }
  }

 private:
  static FLASHSMITH_DEVICE int turn_of(int warpgroup) {
    return ptx::named_barrier_of(NamedBarrier::turn, warpgroup);
  }
  FLASHSMITH_DEVICE int next_turn() const { return turn_of((warpgroup_ + 1) % kWarpgroups); }
};

// Of the forward and of decode.
template <typename Traits>
using ForwardScheduler = WarpgroupScheduler<Traits::n_warpgroups, Traits::config.ping_pong,
                                            Traits::config.ping_pong_until_exp>;

}  // namespace flashsmith::sm90
