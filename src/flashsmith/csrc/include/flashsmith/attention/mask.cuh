// What rows may not see: keys beyond the sequence and, causal, keys that lie ahead.
#pragma once

#include <cmath>
#include <concepts>

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/attention/sequence.cuh"

namespace flashsmith {

// A mask that shows a row the keys before an end of its own.
template <typename T>
concept MaskPolicy = requires(const DenseSequence sequence) {
  { T::kRowsDiffer } -> std::convertible_to<bool>;  // whether rows have different ends
  { T::cut(sequence, 0, 0) } -> std::same_as<int>;  // (sequence, row, end)
};

struct FullMask {
  static constexpr bool kRowsDiffer = false;

  template <SequencePolicy Sequence>
  static FLASHSMITH_DEVICE int cut(const Sequence &, int /*row*/, int end) {
    return end;
  }
};
static_assert(MaskPolicy<FullMask>);

// Bottom-right aligned: the last row sees all keys, each row before it one less.
struct CausalMask {
  static constexpr bool kRowsDiffer = true;

  // The key on the diagonal of `row`, which is the last that the row sees; but at most `end`.
  template <SequencePolicy Sequence>
  static FLASHSMITH_DEVICE int cut(const Sequence &sequence, int row, int end) {
    const int diagonal = row + (sequence.seq_len_k() - sequence.seq_len_q());
    return diagonal < end ? diagonal : end;
  }
};
static_assert(MaskPolicy<CausalMask>);

// Sets to -inf the scores that the mask removes from 16 rows of a block of K. `row`: of this lane's
// first element, in the sequence.
template <typename Traits>
FLASHSMITH_DEVICE void mask(Fragment<Traits::B_c> &S, const typename Traits::Sequence &sequence,
                            int row, int block) {
  const int lane_column = block * Traits::B_c + first_column(ptx::thread_index());
#pragma unroll
  for (int half = 0; half < kHalves; half++) {
    const int last_key = sequence.seq_len_k() - 1;
    const int last = Traits::Mask::cut(sequence, row + half * kRowsPerHalf, last_key) - lane_column;
#pragma unroll
    for (int i = 0; i < Traits::B_c / 4; i++) {
      const int element = i / 2 * 4 + half * 2 + i % 2;
      if (column_of(element) > last) S[element] = -INFINITY;
    }
  }
}

}  // namespace flashsmith
