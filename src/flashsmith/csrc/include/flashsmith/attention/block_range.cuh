// Which blocks of K and V rows of Q visit, and which of them need a mask.
//
// Blocks are visited from the last to the first. Of those a tile sees, some at the end are cut by
// bounds ahead and by the sequence's end, some at the beginning by bounds behind:
//
//     begin        unmasked_from      masked_from         end
//       | masked ... | no mask ......... | masked ......... |
#pragma once

#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"

namespace flashsmith {

// One past the last block that the rows before `row_end` see; at least one, so that every tile is
// alike.
template <typename Traits>
FLASHSMITH_DEVICE int KV_blocks_end(const ProblemArgs &problem,
                                    const typename Traits::Sequence &sequence, int row_end) {
  const int keys = Traits::Mask::last(problem, sequence, row_end, sequence.seq_len_k());
  const int blocks = (keys + Traits::B_c - 1) / Traits::B_c;
  return blocks > 1 ? blocks : 1;
}

// The first block that the rows from `row` on see; before `end`, so that every tile has one.
template <typename Traits>
FLASHSMITH_DEVICE int KV_blocks_begin(const ProblemArgs &problem,
                                      const typename Traits::Sequence &sequence, int row, int end) {
  if constexpr (!Traits::Mask::kBehind) return 0;
  const int block = Traits::Mask::first(problem, sequence, row) / Traits::B_c;
  return block < end ? block : end - 1;
}

// The ranges of keys of the rows from `row` to before `row_end`, joined.
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

// What the user's ranges leave of the blocks of rows from `row` to before `row_end`: one past the
// last, of those before `end`; and the first, of those from `begin` on. There is always one.
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

// The first of the blocks that the rows from `row` on visit with a mask: it holds the last key that
// the first row sees, or keys beyond the sequence. Until a row has seen a key its R is -inf, which
// only a masked step knows, so the block is among them even if all rows see all of it; and so is
// every block of scores that may be -inf by themselves.
template <typename Traits>
FLASHSMITH_DEVICE int masked_from(const ProblemArgs &problem,
                                  const typename Traits::Sequence &sequence, int row) {
  if constexpr (Traits::Score::kMayHide) return 0;
  const int keys = Traits::Mask::last(problem, sequence, row, sequence.seq_len_k());
  return keys > 0 ? keys / Traits::B_c : 0;
}

// The first block that no bound behind cuts for the rows before `row_end`.
template <typename Traits>
FLASHSMITH_DEVICE int unmasked_from(const ProblemArgs &problem,
                                    const typename Traits::Sequence &sequence, int row_end) {
  if constexpr (!Traits::Mask::kBehind) return 0;
  const int key = Traits::Mask::first(problem, sequence, row_end - 1);
  return (key + Traits::B_c - 1) / Traits::B_c;
}

}  // namespace flashsmith
