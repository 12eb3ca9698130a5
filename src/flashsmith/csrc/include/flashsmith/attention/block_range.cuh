// The blocks of K and V that rows of Q visit, and the blocks among them that need a mask.
//
// Blocks are visited from the last to the first. Bounds ahead and the sequence's end cut some
// blocks at the end of a tile's range, bounds behind cut some at the beginning:
//
//    begin        unmasked_from      masked_from         end
//      | masked ... | no mask ......... | masked ......... |
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"

namespace flashsmith {

// Returns one past the last key that the rows before `row_end` see.
template <typename Traits>
FLASHSMITH_DEVICE int keys_end(const ProblemArgs &problem,
                               const typename Traits::Sequence &sequence, int row_end) {
  return Traits::Mask::last(problem, sequence, row_end, sequence.seq_len_k());
}

// Returns one past the last block that the rows before `row_end` see. It is at least 1, so that no
// tile is a special case.
template <typename Traits>
FLASHSMITH_DEVICE int KV_blocks_end(const ProblemArgs &problem,
                                    const typename Traits::Sequence &sequence, int row_end) {
  const int keys = keys_end<Traits>(problem, sequence, row_end);
  const int blocks = (keys + Traits::B_c - 1) / Traits::B_c;
  return blocks > 1 ? blocks : 1;
}

// Returns the first block that the rows from `row` on see. It is before `end`, so that every tile
// visits a block.
template <typename Traits>
FLASHSMITH_DEVICE int KV_blocks_begin(const ProblemArgs &problem,
                                      const typename Traits::Sequence &sequence, int row, int end) {
  if constexpr (!Traits::Mask::kBehind) return 0;
  const int block = Traits::Mask::first(problem, sequence, row) / Traits::B_c;
  return block < end ? block : end - 1;
}

// The union of the user's key ranges of the rows from `row` to before `row_end`.
struct JoinedRanges {
  int begin = 1 << 30, end = 0;

  FLASHSMITH_DEVICE JoinedRanges(const KeyRanges &ranges, const Head &head, int row, int row_end) {
    const int32_t *ends =
        ranges.ends + head.batch * ranges.batch_stride + head.head * ranges.head_stride;
    const int last = (row_end - 1) / ranges.rows_per_entry;
    for (int i = row / ranges.rows_per_entry; i <= last && i < ranges.entries; i++) {
      const int own_begin = ptx::thread_load_global(ends + 2 * i);
      const int own_end = ptx::thread_load_global(ends + 2 * i + 1);
      begin = own_begin < begin ? own_begin : begin;
      end = own_end > end ? own_end : end;
    }
  }
};

// The following two functions narrow the blocks of the rows from `row` to before `row_end` to the
// user's key ranges: ranged_end returns one past the last block, at most `end`, and ranged_begin
// the first block, at least `begin`. One block always remains.
template <typename Traits>
FLASHSMITH_DEVICE int ranged_end(const ProblemArgs &problem, const Head &head, int row, int row_end,
                                 int end) {
  if constexpr (!Traits::Score::kHasRanges) return end;
  if (problem.key_ranges.ends == nullptr) return end;
  const JoinedRanges keys(problem.key_ranges, head, row, row_end);
  const int blocks = (keys.end + Traits::B_c - 1) / Traits::B_c;
  return blocks < 1 ? 1 : blocks < end ? blocks : end;
}
template <typename Traits>
FLASHSMITH_DEVICE int ranged_begin(const ProblemArgs &problem, const Head &head, int row,
                                   int row_end, int begin, int end) {
  if constexpr (!Traits::Score::kHasRanges) return begin;
  if (problem.key_ranges.ends == nullptr) return begin < end ? begin : end - 1;
  const JoinedRanges keys(problem.key_ranges, head, row, row_end);
  const int block = keys.begin / Traits::B_c;
  const int first = block > begin ? block : begin;
  return first < end ? first : end - 1;
}

// Returns the first block that the rows from `row` on visit with a mask: it holds the last key that
// the first row sees, or keys beyond the sequence. Until a row has seen a key its R is -inf, which
// only a masked step handles, so the block gets a mask even if all rows see all of it. If scores
// may become -inf by themselves, every block gets one.
template <typename Traits>
FLASHSMITH_DEVICE int masked_from(const ProblemArgs &problem,
                                  const typename Traits::Sequence &sequence, int row) {
  if constexpr (Traits::Score::kMayHide) return 0;
  const int keys = Traits::Mask::last(problem, sequence, row, sequence.seq_len_k());
  return keys > 0 ? keys / Traits::B_c : 0;
}

// Returns the first block that no bound behind cuts for the rows before `row_end`.
template <typename Traits>
FLASHSMITH_DEVICE int unmasked_from(const ProblemArgs &problem,
                                    const typename Traits::Sequence &sequence, int row_end) {
  if constexpr (!Traits::Mask::kBehind) return 0;
  const int key = Traits::Mask::first(problem, sequence, row_end - 1);
  return (key + Traits::B_c - 1) / Traits::B_c;
}

}  // namespace flashsmith
