// Hides keys from rows: keys beyond the sequence, ahead of a bound, or behind one.
#pragma once

#include <cmath>
#include <concepts>

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/attention/sequence.cuh"

namespace flashsmith {

// A mask that shows each row a contiguous range of keys.
template <typename T>
concept MaskPolicy = requires(const ProblemArgs &problem, const DenseSequence sequence) {
  { T::kAhead } -> std::convertible_to<bool>;   // whether rows have different ends
  { T::kBehind } -> std::convertible_to<bool>;  // whether rows have different begins
  { T::last(problem, sequence, 0, 0) } -> std::same_as<int>;
  { T::first(problem, sequence, 0) } -> std::same_as<int>;
};

// Shows keys within a distance of a row's diagonal. A causal mask has none ahead, a sliding window
// some behind.
template <bool kBoundedAhead, bool kBoundedBehind>
struct BandMask {
  static constexpr bool kAhead = kBoundedAhead, kBehind = kBoundedBehind;

  // Returns the last key that `row` sees, at most `maximum`.
  template <SequencePolicy Sequence>
  static FLASHSMITH_DEVICE int last(const ProblemArgs &problem, const Sequence &sequence, int row,
                                    int maximum) {
    if constexpr (!kAhead) return maximum;
    const int key = row + sequence.diagonal() + problem.band.ahead;
    return key < maximum ? key : maximum;
  }

  // Returns the first key that `row` sees.
  template <SequencePolicy Sequence>
  static FLASHSMITH_DEVICE int first(const ProblemArgs &problem, const Sequence &sequence,
                                     int row) {
    if constexpr (!kBehind) return 0;
    const int key = row + sequence.diagonal() - problem.band.behind;
    return key > 0 ? key : 0;
  }
};
static_assert(MaskPolicy<BandMask<true, true>>);

// Sets to -inf the scores that the mask hides from 16 rows of a block of K. query_of returns the
// query of one of this lane's rows, in the sequence.
template <typename Traits, int kElements, typename QueryOf>
FLASHSMITH_DEVICE void mask_rows(float (&S)[kElements], const ProblemArgs &problem,
                                 const typename Traits::Sequence &sequence, QueryOf query_of,
                                 int block) {
  using Mask = typename Traits::Mask;
  const int lane_column = block * Traits::B_c + first_column(ptx::thread_index());
#pragma unroll
  for (int half = 0; half < kHalves; half++) {
    const int own_row = query_of(half), last_key = sequence.seq_len_k() - 1;
    const int last = Mask::last(problem, sequence, own_row, last_key) - lane_column;
    const int first = Mask::first(problem, sequence, own_row) - lane_column;
#pragma unroll
    for (int i = 0; i < kElements / 2; i++) {
      const int element = i / 2 * 4 + half * 2 + i % 2;
      if (column_of(element) > last) S[element] = -INFINITY;
      if constexpr (Mask::kBehind) {
        if (column_of(element) < first) S[element] = -INFINITY;
      }
    }
  }
}

// Masks rows that are queries side by side. `row` is the row of this lane's first element.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void mask(float (&S)[kElements], const ProblemArgs &problem,
                            const typename Traits::Sequence &sequence, int row, int block) {
  const auto query_of = [row](int half) { return row + half * kRowsPerHalf; };
  mask_rows<Traits>(S, problem, sequence, query_of, block);
}

}  // namespace flashsmith
