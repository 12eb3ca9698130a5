// Whether a mask leaves any scores between some queries and some keys.
#pragma once

#include "flashsmith/attention/mask.cuh"

namespace flashsmith::sm80 {

// Returns whether some of the queries from `query` to before `query_end` may see some of the keys
// from `key` to before `key_end`.
template <typename Traits>
FLASHSMITH_DEVICE bool may_see(const ProblemArgs &problem,
                               const typename Traits::Sequence &sequence, int query, int query_end,
                               int key, int key_end) {
  using Mask = typename Traits::Mask;
  return Mask::last(problem, sequence, query_end - 1, sequence.seq_len_k() - 1) >= key &&
         Mask::first(problem, sequence, query) < key_end;
}

}  // namespace flashsmith::sm80
