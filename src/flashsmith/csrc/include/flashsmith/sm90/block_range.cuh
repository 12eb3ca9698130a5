// Which blocks of K and V a tile visits, and which of them need a mask.
#pragma once

#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

// Row i sees keys 0 to i + this.
FLASHSMITH_DEVICE int causal_offset(const Sm90ForwardKernelArgs &args) {
  return args.seq_len_k - args.seq_len_q;
}

// How many blocks of K and V the rows before `row_end` see; at least one, so that every tile is
// alike.
template <typename Traits>
FLASHSMITH_DEVICE int n_KV_blocks(const Sm90ForwardKernelArgs &args, int row_end) {
  int keys = args.seq_len_k;
  if constexpr (Traits::causal) {
    const int visible = row_end + causal_offset(args);
    keys = visible < keys ? visible : keys;
  }
  const int blocks = (keys + Traits::B_c - 1) / Traits::B_c;
  return blocks > 1 ? blocks : 1;
}

// How many of a tile's blocks, from the last on, the warpgroup with the 64 rows from `row` on
// leaves out, because none of its rows sees them. No more than the stages allow: while it waits for
// the block after them it has not yet released the last V of the tile before.
template <typename Traits>
FLASHSMITH_DEVICE int n_skipped_blocks(const Sm90ForwardKernelArgs &args, int tile_blocks,
                                       int row) {
  if constexpr (!Traits::causal) return 0;
  const int unseen = tile_blocks - n_KV_blocks<Traits>(args, row + kWgmmaM);
  return unseen < Traits::n_stages - 1 ? unseen : Traits::n_stages - 1;
}

// The first of the blocks that the 64 rows from `row` on visit with a mask: it holds the last key
// that the first row sees, or keys beyond the sequence. Until a row has seen a key its R is -inf,
// which only a masked step knows, so the block is among them even if all rows see all of it.
template <typename Traits>
FLASHSMITH_DEVICE int first_masked_block(const Sm90ForwardKernelArgs &args, int row) {
  int keys = args.seq_len_k;
  if constexpr (Traits::causal) {
    const int last_visible = row + causal_offset(args);
    keys = last_visible < keys ? last_visible : keys;
  }
  return keys > 0 ? keys / Traits::B_c : 0;
}

}  // namespace flashsmith::sm90
