// Ping-pong: the warpgroups take turns with the tensor cores, so that the softmax of one runs under
// the products of the others.
//
// A turn ends when products have been issued. FP8 products take so little time that warpgroups
// would follow one another closely, and compete for the units of the exponentials: with kUntilExp,
// a turn in the forward's loop lasts until the exponentials begin. Every wait needs its pass;
// otherwise all warpgroups wait for ever.
//
// In a turn of the forward a warpgroup waits for one thing that others decide: V of the previous
// block. Its buffer belonged to a block n_stages earlier, whose turns are over, so that releasing
// it takes no other turn.
#pragma once

#include "flashsmith/params.h"
#include "flashsmith/sm90/named_barrier.cuh"

namespace flashsmith::sm90 {

template <int kWarpgroups, bool kTakeTurns, bool kUntilExp = false>
class WarpgroupScheduler {
  static constexpr int kThreads = 2 * kWarpgroupSize;  // one warpgroup waits, one passes

  const int warpgroup_;

 public:
  FLASHSMITH_DEVICE explicit WarpgroupScheduler(int warpgroup) : warpgroup_(warpgroup) {}

  // Somebody has to pass the first turn, and to wait for the last: warpgroup 0 does. The last
  // warpgroup may pass the first turn instead of begin.
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

  // The following functions pass a turn in the forward's loop: when both products have been issued,
  // or, with kUntilExp, when the first row's reference is known.
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

// The scheduler of the forward and of decode.
template <typename Traits>
using ForwardScheduler = WarpgroupScheduler<Traits::n_warpgroups, Traits::config.ping_pong,
                                            Traits::config.ping_pong_until_exp>;

}  // namespace flashsmith::sm90
