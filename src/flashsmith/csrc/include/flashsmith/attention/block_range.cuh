// Which blocks of K and V rows of Q visit, and which of them need a mask.
#pragma once

#include "flashsmith/attention/mask.cuh"

namespace flashsmith {

// How many blocks of K and V the rows before `row_end` see; at least one, so that every tile is
// alike.
template <typename Traits>
FLASHSMITH_DEVICE int n_KV_blocks(const typename Traits::Sequence &sequence, int row_end) {
  const int keys = Traits::Mask::cut(sequence, row_end, sequence.seq_len_k());
  const int blocks = (keys + Traits::B_c - 1) / Traits::B_c;
  return blocks > 1 ? blocks : 1;
}

// The first of the blocks that the rows from `row` on visit with a mask: it holds the last key that
// the first row sees, or keys beyond the sequence. Until a row has seen a key its R is -inf, which
// only a masked step knows, so the block is among them even if all rows see all of it.
template <typename Traits>
FLASHSMITH_DEVICE int first_masked_block(const typename Traits::Sequence &sequence, int row) {
  const int keys = Traits::Mask::cut(sequence, row, sequence.seq_len_k());
  return keys > 0 ? keys / Traits::B_c : 0;
}

}  // namespace flashsmith
