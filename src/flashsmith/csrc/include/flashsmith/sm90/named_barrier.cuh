// The named barriers of the sm90 family's thread blocks.
#pragma once

#include "flashsmith/ptx/named_barrier.cuh"

namespace flashsmith::sm90 {

// Each enumerator is the barrier of warpgroup 0; the barriers of the other warpgroups follow it
// (ptx::named_barrier_of).
enum class NamedBarrier : int {
  turn = 1,       // a warpgroup's turn with the tensor cores begins
  own_warps = 8,  // the warps of a warpgroup meet over rows that they share
  // Loads of a block's first Q, or K, are on their way, so that those of K, or V, may follow.
  Q_is_asked_for = 12,
  K_is_asked_for = 13,
};
constexpr int kMaxConsumerWarpgroups = 4;
static_assert(static_cast<int>(NamedBarrier::turn) + kMaxConsumerWarpgroups <=
                      static_cast<int>(NamedBarrier::own_warps) &&
                  static_cast<int>(NamedBarrier::own_warps) + kMaxConsumerWarpgroups <=
                      static_cast<int>(NamedBarrier::Q_is_asked_for),
              "each warpgroup has a barrier of its own for each purpose");

}  // namespace flashsmith::sm90
