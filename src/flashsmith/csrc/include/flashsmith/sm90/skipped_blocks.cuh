// Which blocks of a tile a warpgroup leaves to the others.
#pragma once

#include "flashsmith/attention/block_range.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

// How many of a tile's blocks, from the last on, the warpgroup with the 64 rows from `row` on
// leaves out, because none of its rows sees them. No more than the stages allow: while it waits for
// the block after them it has not yet released the last V of the tile before.
template <typename Traits>
FLASHSMITH_DEVICE int n_skipped_blocks(const typename Traits::Sequence &sequence, int tile_blocks,
                                       int row) {
  if constexpr (!Traits::Mask::kRowsDiffer) return 0;
  const int unseen = tile_blocks - n_KV_blocks<Traits>(sequence, row + kWgmmaM);
  return unseen < Traits::n_stages - 1 ? unseen : Traits::n_stages - 1;
}

}  // namespace flashsmith::sm90
