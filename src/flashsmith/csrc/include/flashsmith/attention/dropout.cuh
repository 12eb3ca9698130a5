// Dropout: a random number decides whether a weight is dropped. It is a function of the call's RNG
// state, the batch entry, the head, the query and the key, so that the kernels of every family,
// forward and backward, drop the same weights. docs/dropout.md has the reasons.
//
// A cell holds four random numbers: for queries q and q + 8 with keys k and k + 8, which lie in one
// 16 by 16 block. A lane has whole cells, whether the rows of its fragment are queries or keys.
#pragma once

#include <concepts>
#include <type_traits>

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/random.cuh"
#include "flashsmith/ptx/uniform.cuh"

namespace flashsmith {

// The random numbers of a cell: word h belongs to query q + 8 h, with key k in its lower half and
// key k + 8 in its upper half.
struct Cell {
  uint32_t word[2];
};

// `kDrops`: whether weights are dropped.
template <typename T>
concept DropoutPolicy = requires(const ProblemArgs &problem, const Head &head) {
  { T::kDrops } -> std::convertible_to<bool>;
  T();                                  // without a head yet
  T(problem, head);                     // for this head
  { T()(0, 0) } -> std::same_as<Cell>;  // a cell, by its indices along queries and along keys
};

class NoDropout {
 public:
  static constexpr bool kDrops = false;

  NoDropout() = default;
  FLASHSMITH_DEVICE NoDropout(const ProblemArgs &, const Head &) {}

  FLASHSMITH_DEVICE Cell operator()(int, int) const { return {}; }
};
static_assert(DropoutPolicy<NoDropout>);

// Philox, by Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC '11), section 3.3:
// 4x32 with ten rounds generates the key of a head, 2x32 with seven the numbers of a cell.
constexpr uint32_t kHeadFactor0 = 0xd2511f53, kHeadFactor1 = 0xcd9e8d57, kCellFactor = 0xd256d193;
constexpr uint32_t kKeyStep0 = 0x9e3779b9, kKeyStep1 = 0xbb67ae85;
constexpr int kHeadRounds = 10, kCellRounds = 7;

class WeightDropout {
  uint32_t key_ = 0, first_ = 0;  // the key of the head, and the counter of its first query

 public:
  static constexpr bool kDrops = true;

  WeightDropout() = default;
  FLASHSMITH_DEVICE WeightDropout(const ProblemArgs &problem, const Head &head) {
    const auto *state = reinterpret_cast<const uint32_t *>(problem.dropout.rng_state);
    uint32_t key[] = {ptx::thread_load_global(state), ptx::thread_load_global(state + 1)};
    uint32_t counter[] = {ptx::thread_load_global(state + 2), ptx::thread_load_global(state + 3),
                          static_cast<uint32_t>(head.batch), static_cast<uint32_t>(head.head)};
#pragma unroll 1
    for (int round = 0; round < kHeadRounds; round++) {
      const uint64_t first = static_cast<uint64_t>(kHeadFactor0) * counter[0];
      const uint64_t second = static_cast<uint64_t>(kHeadFactor1) * counter[2];
      counter[0] = high(second) ^ counter[1] ^ key[0];
      counter[1] = static_cast<uint32_t>(second);
      counter[2] = high(first) ^ counter[3] ^ key[1];
      counter[3] = static_cast<uint32_t>(first);
      key[0] += kKeyStep0;
      key[1] += kKeyStep1;
    }
    key_ = ptx::uniform(static_cast<int>(counter[0]));
    first_ = ptx::uniform(static_cast<int>(counter[1]));
  }

  FLASHSMITH_DEVICE Cell operator()(int query, int key) const {
    uint32_t left = key, right = first_ + query;
#pragma unroll
    for (int round = 0; round < kCellRounds; round++) {
      const uint64_t product = static_cast<uint64_t>(kCellFactor) * left;
      left = high(product) ^ (key_ + round * kKeyStep0) ^ right;
      right = static_cast<uint32_t>(product);
    }
    return {{left, right}};
  }

 private:
  static FLASHSMITH_DEVICE uint32_t high(uint64_t product) {
    return static_cast<uint32_t>(product >> 32);
  }
};
static_assert(DropoutPolicy<WeightDropout>);

template <bool kDrops>
using DropoutOf = std::conditional_t<kDrops, WeightDropout, NoDropout>;

// Returns the index of the cell of a row or column that is among the first eight of its 16.
FLASHSMITH_DEVICE int cell_of(int index) { return (index + index % kRowsPerHalf) / 2; }

// Calls `decide(dropped, weight)` for the weights of a fragment. `row` and `column` are the lane's
// first element, in the sequence.
template <typename Traits, RowsAre kRowsAre, int kElements, typename Decide>
FLASHSMITH_DEVICE void for_each_weight(float (&P)[kElements], const ProblemArgs &problem,
                                       const typename Traits::Dropout &dropout, int row, int column,
                                       Decide decide) {
  if constexpr (!Traits::Dropout::kDrops) return;
  constexpr bool kQueries = kRowsAre == RowsAre::queries;
  constexpr int kBlockElements = 8;  // of 16 columns, which span eight cells
  const int row_cell = cell_of(row), first_cell = cell_of(column);
#pragma unroll
  for (int i = 0; i < kElements / 4; i++) {
    const int first = i / 2 * kBlockElements + i % 2;
    const int column_cell = first_cell + i / 2 * kRowsPerHalf + i % 2;
    const Cell cell = dropout(kQueries ? row_cell : column_cell, kQueries ? column_cell : row_cell);
#pragma unroll
    for (int query = 0; query < kHalves; query++) {
      bool dropped[kHalves];
      ptx::both_below(dropped, cell.word[query], problem.dropout.bounds);
#pragma unroll
      for (int key = 0; key < kHalves; key++) {
        const int row_half = kQueries ? query : key, column_half = kQueries ? key : query;
        decide(dropped[key], P[first + 4 * column_half + 2 * row_half]);
      }
    }
  }
}

// Drops weights of a fragment whose rows are queries. `row` and `column` as above.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void drop_weights(float (&P)[kElements], const ProblemArgs &problem,
                                    const typename Traits::Dropout &dropout, int row, int column) {
  for_each_weight<Traits, RowsAre::queries>(
      P, problem, dropout, row, column,
      [](bool dropped, float &weight) { weight = dropped ? 0.f : weight; });
}

// ---- the backward needs the dropped weights, too: a minus sign marks them ----

template <typename Traits, RowsAre kRowsAre, int kElements>
FLASHSMITH_DEVICE void mark_dropped(float (&P)[kElements], const ProblemArgs &problem,
                                    const typename Traits::Dropout &dropout, int row, int column) {
  for_each_weight<Traits, kRowsAre>(
      P, problem, dropout, row, column,
      [](bool dropped, float &weight) { ptx::negate_if(dropped, weight); });
}

// Returns a weight without its mark.
template <typename Traits>
FLASHSMITH_DEVICE float weight_of(float marked) {
  return Traits::Dropout::kDrops ? fabsf(marked) : marked;
}

// Returns the gradient with respect to a weight, from the gradient with respect to the weight as it
// enters the product with V: times the scale if it was kept, 0 if it was dropped.
template <typename Traits>
FLASHSMITH_DEVICE float kept_gradient(float gradient, float marked, const ProblemArgs &problem) {
  if constexpr (!Traits::Dropout::kDrops) return gradient;
  const float half = .5f * problem.dropout.scale;
  return gradient * (half + copysignf(half, marked));
}

// Returns the factor of a product of the weights that are kept.
template <typename Traits>
FLASHSMITH_DEVICE float scale_of_kept(const ProblemArgs &problem) {
  if constexpr (!Traits::Dropout::kDrops) return 1.f;
  return problem.dropout.scale;
}

// Packs like pack_operand, with zeros for the weights that are dropped.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void pack_kept(uint32_t (&operand)[kElements / 8][4],
                                 const float (&marked)[kElements]) {
  using value_t = typename Traits::value_t;
  if constexpr (!Traits::Dropout::kDrops) {
    pack_operand<value_t>(operand, marked);
  } else {
#pragma unroll
    for (int i = 0; i < kElements / 2; i++) {
      operand[i / 4][i % 4] = ptx::pack_positive<value_t>(marked[2 * i], marked[2 * i + 1]);
    }
  }
}

}  // namespace flashsmith
