// The named barriers of the sm80 family's thread blocks.
#pragma once

#include "flashsmith/ptx/named_barrier.cuh"

namespace flashsmith::sm80 {

// Each enumerator is the barrier of group 0; the barriers of the other groups follow it
// (ptx::named_barrier_of). No kernel has both kinds of groups.
enum class NamedBarrier : int {
  row_sharers = 1,  // backward: warps that share rows of gradients
  team = 1,         // decode: warps of a team
};

}  // namespace flashsmith::sm80
