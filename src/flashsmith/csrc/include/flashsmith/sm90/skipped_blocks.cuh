// The blocks that a tile visits, and those of them that a warpgroup leaves to the others.
#pragma once

#include "flashsmith/attention/block_range.cuh"
#include "flashsmith/sm90/packed_heads.cuh"

namespace flashsmith::sm90 {

// The blocks that a tile visits, together with the other tiles of its cluster.
struct BlockRange {
  int begin, end;
};

template <typename Traits>
FLASHSMITH_DEVICE BlockRange KV_blocks_of_tile(const Sm90ForwardKernelArgs &args,
                                               const typename Traits::Sequence &sequence,
                                               const WorkTile &tile) {
  const ProblemArgs &problem = args.problem;
  const Head head{tile.head, tile.batch};
  const int row = tile_row_begin<Traits>(args, tile), row_end = tile_row_end<Traits>(args, tile);
  const int end = ranged_end<Traits>(problem, head, row, row_end,
                                     KV_blocks_end<Traits>(problem, sequence, row_end));
  return {ranged_begin<Traits>(problem, head, row, row_end,
                               KV_blocks_begin<Traits>(problem, sequence, row, end), end),
          end};
}

// A warpgroup leaves at most this number of blocks unread in a row: while it waits for the block
// after them it has not yet released the last V of the previous tile.
template <typename Traits>
constexpr int kMaxUnread = Traits::n_stages - 1;

// Returns the number of a tile's blocks (from `begin` to before `end`), counted from the last on,
// that the warpgroup with the rows before `row_end` skips, because none of its rows sees them; at
// most `maximum`.
template <typename Traits>
FLASHSMITH_DEVICE int n_skipped_blocks(const ProblemArgs &problem,
                                       const typename Traits::Sequence &sequence, int begin,
                                       int end, int row_end, int maximum) {
  if constexpr (!Traits::Mask::kAhead) return 0;
  const int own_end = KV_blocks_end<Traits>(problem, sequence, row_end);
  const int unseen = end - (own_end > begin ? own_end : begin + 1);
  if (Traits::Score::kHasRanges && unseen < 0) return 0;
  return unseen < maximum ? unseen : maximum;
}

// Returns the number of a tile's blocks, counted from `begin` on, that the warpgroup skips at the
// far edge of its rows' windows; it visits `last` at least.
template <typename Traits>
FLASHSMITH_DEVICE int n_skipped_before(const ProblemArgs &problem,
                                       const typename Traits::Sequence &sequence, int begin,
                                       int last, int row) {
  const int unseen = KV_blocks_begin<Traits>(problem, sequence, row, last + 1) - begin;
  if (unseen < 0) return 0;
  return unseen < kMaxUnread<Traits> ? unseen : kMaxUnread<Traits>;
}

}  // namespace flashsmith::sm90
