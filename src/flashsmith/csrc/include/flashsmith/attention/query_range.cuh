// The queries that see a block of keys: the transpose of block_range.cuh.
//
//    begin      unmasked_begin     unmasked_end       end
//      | some keys ... | all keys ....... | some keys ... |
#pragma once

#include "flashsmith/attention/mask.cuh"

namespace flashsmith {

struct QueryRange {
  int begin, end;                    // rows of the sequence that see a key of the block
  int unmasked_begin, unmasked_end;  // rows, possibly out of range, that see all of its keys
};

// Returns the range for the keys from `key` to before `key_end`, which may lie beyond the sequence:
// a mask hides the keys there.
template <typename Traits>
FLASHSMITH_DEVICE QueryRange queries_of_keys(const ProblemArgs &problem,
                                             const typename Traits::Sequence &sequence, int key,
                                             int key_end) {
  using Mask = typename Traits::Mask;
  const int n_queries = sequence.seq_len_q(), n_keys = sequence.seq_len_k();
  const int diagonal = sequence.diagonal();
  QueryRange range{0, n_queries, 0, n_queries};
  if (key >= n_keys) return {0, 0, n_queries, n_queries};
  const int last_key = (key_end < n_keys ? key_end : n_keys) - 1;
  if constexpr (Mask::kAhead) {
    const int begin = key - diagonal - problem.band.ahead;
    range.begin = begin > 0 ? begin : 0;
    range.unmasked_begin = last_key - diagonal - problem.band.ahead;
  }
  if constexpr (Mask::kBehind) {
    const int end = last_key - diagonal + problem.band.behind + 1;
    range.end = end < n_queries ? end : n_queries;
    range.unmasked_end = key - diagonal + problem.band.behind + 1;
  }
  if (key_end > n_keys) range.unmasked_begin = n_queries;
  return range;
}

}  // namespace flashsmith
