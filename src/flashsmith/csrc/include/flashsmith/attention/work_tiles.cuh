// The work tiles of decode: B_r packed GQA rows of one head of the cache. Their keys are visited in
// KV steps, which the teams of a block have side by side.
#pragma once

#include <type_traits>

#include "flashsmith/attention/decode_sequence.cuh"
#include "flashsmith/attention/divisor.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/ptx/shuffle.cuh"

namespace flashsmith {

// The keys that any query of a request sees; `begin` is a multiple of B_c.
struct KeySpan {
  int begin, end;

  template <typename Traits>
  static FLASHSMITH_DEVICE KeySpan of(const DecodeProblem &problem,
                                      const typename Traits::Sequence &sequence) {
    using Mask = typename Traits::Mask;
    const int begin = Mask::first(problem, sequence, 0) / Traits::B_c * Traits::B_c;
    const int last = Mask::last(problem, sequence, problem.seq_len_q - 1, sequence.seq_len_k() - 1);
    return {begin, last >= begin ? last + 1 : begin};
  }
};

// A split: the KV steps from `begin` to before `end` of a work tile.
struct KeySplit {
  int batch, head, Q_block;
  int tile;  // number of the work tile
  int begin, end;
  int index, count;              // among the splits of the work tile
  int first_slot, rest, stride;  // slots of the partial results

  FLASHSMITH_DEVICE int slot(int i) const { return i == 0 ? first_slot : rest + i * stride; }
};

static_assert(sizeof(KeySplit) == kSplitWords * sizeof(uint32_t),
              "the host has room for what a kernel that combines is told");

// Returns the sum over the lanes before this one, and in `total` the sum over all lanes.
FLASHSMITH_DEVICE int sum_before(int value, int lane, int &total) {
  int before = 0;
  total = value;
  const auto add = [&](auto mask) {
    constexpr int kMask = decltype(mask)::value;
    const float other = ptx::shuffle_xor<kMask>(ptx::bits_float(static_cast<uint32_t>(total)));
    const int of_others = static_cast<int>(ptx::float_bits(other));
    if (lane & kMask) before += of_others;
    total += of_others;
  };
  add(std::integral_constant<int, 1>());
  add(std::integral_constant<int, 2>());
  add(std::integral_constant<int, 4>());
  add(std::integral_constant<int, 8>());
  add(std::integral_constant<int, 16>());
  return before;
}

// The work tiles of a call, and their KV steps.
template <typename Traits>
class WorkTiles {
  static constexpr int kStepKeys = Traits::B_c * Traits::n_teams;
  static constexpr int kMinSteps = Traits::min_steps, kManySplits = Traits::many_splits;
  static constexpr int kMinStepsOfMany = Traits::min_steps_of_many;

  const DecodeProblem &problem_;

 public:
  explicit FLASHSMITH_DEVICE WorkTiles(const DecodeProblem &problem) : problem_(problem) {}

  // Returns the KV steps of each work tile of a request; one at least, so that no work tile is a
  // special case.
  FLASHSMITH_DEVICE int steps_of(int request) const {
    const typename Traits::Sequence sequence(problem_, request);
    const auto keys = KeySpan::template of<Traits>(problem_, sequence);
    const int steps = (keys.end - keys.begin + kStepKeys - 1) / kStepKeys;
    return steps > 1 ? steps : 1;
  }

  // Returns the min number of KV steps of a block in a work tile of `steps` steps. It grows, up to
  // a bound, where many blocks would share a work tile, because the last of them has to combine
  // their partial results.
  FLASHSMITH_DEVICE int min_steps(int steps) const {
    if (problem_.split.split_tiles != nullptr) return kMinSteps;
    int minimum = steps / kManySplits;
    minimum = minimum < kMinStepsOfMany ? minimum : kMinStepsOfMany;
    return minimum > kMinSteps ? minimum : kMinSteps;
  }

  // Returns a split of a request's work tile, without its keys and slots.
  FLASHSMITH_DEVICE KeySplit split_of(int request, int tile) const {
    KeySplit split{};
    split.batch = request;
    split.head = quotient(tile, problem_.Q_blocks);
    split.Q_block = tile - split.head * problem_.Q_blocks.value;
    split.tile = request * problem_.tiles_of_request.value + tile;
    return split;
  }
};

}  // namespace flashsmith
