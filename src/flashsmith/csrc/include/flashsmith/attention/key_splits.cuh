// The split-KV schedule: the keys of the requests that a thread block visits.
//
// A work tile is B_r packed GQA rows of one head of the cache. Its keys are visited in KV steps of
// kStepKeys keys, which the teams of a block have side by side. There are two schedules.
//
// Equal splits: each work tile is split into the same number of splits, which blocks take in turn.
// The number is either an argument, so that the result of a request does not depend on the other
// requests, or the number that keeps all blocks busy if the cache is full.
//
// Stream-K: the KV steps of all work tiles, request by request, each work tile with a fixed cost,
// form one sequence. It is cut into equal work ranges, one for each block. At most the first and
// the last work tile of a range are split. The ranges are balanced whatever the lengths are, but
// blocks begin and end within work tiles:
//
//    work tiles   |  0    |  1               |  2 |  3           |
//    blocks       |  0         |  1         |  2         |  3    |
//
// Which schedule is shorter depends on all lengths, so blocks begin with equal splits and change to
// stream-K when they have read them.
#pragma once

#include <type_traits>

#include "flashsmith/attention/decode_sequence.cuh"
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

// The following functions divide numbers that are not negative. Divisors are mostly 1, which saves
// the division.
FLASHSMITH_DEVICE int quotient(int value, int divisor) {
  if (divisor == 1) return value;
  return static_cast<int>(static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor));
}
FLASHSMITH_DEVICE int quotient_up(int value, int divisor) {
  return quotient(value + divisor - 1, divisor);
}

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

// The max and the sum of the costs of a lane's requests, of one work tile each.
struct WorkTileCosts {
  int maximum, sum;
};

// The position of a block in its schedule.
struct SplitsState {
  int splits;   // of every work tile; 0: stream-K
  int at, end;  // work range of stream-K; or next equal split, and their number
  int range;    // length of a block's work range
  int request, request_begin, steps;  // the request that `at` lies in
  int is_final;                       // whether the schedule no longer depends on the lengths
};

// The splits of a block, one after the other. All warps compute the same splits.
template <typename Traits>
class KeySplits {
  static constexpr int kStepKeys = Traits::B_c * Traits::n_teams;
  // Costs in KV steps: kFixedCost for every work tile beside its steps, and kRangeCost for a work
  // range, whose ends have to be combined with other blocks' partial results.
  static constexpr int kFixedCost = 1, kRangeCost = Traits::range_cost;
  static constexpr int kAbout = 32;  // stream-K has to gain more than 1 / this
  // The min number of KV steps of a block in a work tile. It grows, up to a bound, where many
  // blocks would share a work tile, because the last of them has to combine their partial results.
  static constexpr int kMinSteps = Traits::min_steps, kManySplits = Traits::many_splits;
  static constexpr int kMinStepsOfMany = Traits::min_steps_of_many;
  // Lengths that a lane loads at a time.
  static constexpr int kLengthsAtOnce = 4;

  const DecodeProblem &problem_;
  const int tiles_of_request_;
  SplitsState own_;

 public:
  explicit FLASHSMITH_DEVICE KeySplits(const DecodeProblem &problem)
      : problem_(problem),
        tiles_of_request_(problem.Q_blocks * problem.n_heads_kv),
        own_{.splits = problem.split.splits > 0 ? problem.split.splits : problem.split.even_splits,
             .at = ptx::block_index_x(),
             .is_final = problem.split.splits > 0 || problem.split.is_even} {
    own_.end = tiles() * own_.splits;
  }

  // Another object may continue from this state.
  FLASHSMITH_DEVICE const SplitsState &state() const { return own_; }
  FLASHSMITH_DEVICE KeySplits(const DecodeProblem &problem, const SplitsState &state)
      : problem_(problem), tiles_of_request_(problem.Q_blocks * problem.n_heads_kv), own_(state) {}

  // Whether the schedule no longer depends on the lengths.
  FLASHSMITH_DEVICE bool is_final() const { return own_.is_final; }

  // Reads all lengths, of which this lane gets its share.
  FLASHSMITH_DEVICE WorkTileCosts costs() const {
    WorkTileCosts found{};
    const auto look_at = [&](int request) {
      const int own = cost_of_request(request);
      found.maximum = found.maximum > own ? found.maximum : own;
      found.sum += own;
    };
    const int lane = ptx::thread_index() % kWarpSize;
    if (problem_.batch <= kWarpSize) {  // short code is fetched sooner
      look_at(lane);
    } else {
      for (int first = lane; first < problem_.batch + lane; first += kLengthsAtOnce * kWarpSize) {
#pragma unroll
        for (int i = 0; i < kLengthsAtOnce; i++) look_at(first + i * kWarpSize);
      }
    }
    return found;
  }

  // Returns whether stream-K is shorter, once. If so, the equal splits become void, and the splits
  // of the block's work range follow.
  FLASHSMITH_DEVICE bool use_stream_k() {
    if (own_.is_final) [[likely]]
      return false;
    return use_stream_k(costs());
  }
  // The same, for a schedule that is not final.
  FLASHSMITH_DEVICE bool use_stream_k(const WorkTileCosts &costs) {
    own_.is_final = true;
    const int maximum = ptx::max_of_lanes(costs.maximum) - kFixedCost;
    const int total = ptx::sum_of_lanes(costs.sum) * tiles_of_request_;
    const int minimum = min_steps(maximum), share = quotient_up(total, problem_.split.n_ranges);
    own_.range = share > minimum ? share : minimum;
    const int by_ranges = problem_.split.ranges_of_SM * own_.range;
    if (time_of_splits(maximum, by_ranges) <= by_ranges + by_ranges / kAbout + kRangeCost) {
      return false;
    }
    own_.splits = 0;
    own_.at = own_.end = 0;  // blocks beyond the ranges leave
    if (ptx::block_index_x() >= problem_.split.n_ranges) return true;
    const int begin = ptx::block_index_x() * own_.range, end = begin + own_.range;
    own_.at = begin;
    own_.end = end < total ? end : total;
    if (own_.at < own_.end) find_request();
    return true;
  }

  // Sets the next split, and returns whether there is one.
  FLASHSMITH_DEVICE bool next(KeySplit &split) {
    return own_.splits > 0 ? next_of_equal_splits(split) : next_of_range(split);
  }

 private:
  FLASHSMITH_DEVICE int steps_of(int request) const {
    const typename Traits::Sequence sequence(problem_, request);
    const auto keys = KeySpan::template of<Traits>(problem_, sequence);
    const int steps = (keys.end - keys.begin + kStepKeys - 1) / kStepKeys;
    return steps > 1 ? steps : 1;  // so that no work tile is a special case
  }
  FLASHSMITH_DEVICE int cost(int steps) const { return steps + kFixedCost; }
  // Returns the cost of one work tile of a request; 0 behind the last request.
  FLASHSMITH_DEVICE int cost_of_request(int request) const {
    return request < problem_.batch ? cost(steps_of(request)) : 0;
  }

  FLASHSMITH_DEVICE int tiles() const { return problem_.batch * tiles_of_request_; }

  // Returns the min number of KV steps of a block in a work tile of `steps` steps.
  FLASHSMITH_DEVICE int min_steps(int steps) const {
    if (problem_.split.split_tiles != nullptr) return kMinSteps;
    int minimum = steps / kManySplits;
    minimum = minimum < kMinStepsOfMany ? minimum : kMinStepsOfMany;
    return minimum > kMinSteps ? minimum : kMinSteps;
  }

  // Returns the KV steps of each split of a work tile of `steps` steps.
  FLASHSMITH_DEVICE int steps_of_split(int steps) const {
    const int each = quotient_up(steps, own_.splits);
    if (problem_.split.splits > 0) return each;
    const int minimum = min_steps(steps);
    return each > minimum ? each : minimum;
  }

  // Returns the time of equal splits, in KV steps of an SM, if the longest work tile has `steps`,
  // and all have `fair` steps for each SM. Short splits run beside long ones, and leave them their
  // share of the memory bandwidth.
  FLASHSMITH_DEVICE int time_of_splits(int steps, int fair) const {
    const SplitTimes &times = problem_.split.times;
    const int longest = cost(steps_of_split(steps));
    const int equal = of_sixteenths(longest, times.all),
              mixed = fair + of_sixteenths(longest, times.last),
              alone = of_sixteenths(longest, times.alone);
    const int time = equal < mixed ? equal : mixed;
    return time > alone ? time : alone;
  }
  static FLASHSMITH_DEVICE int of_sixteenths(int value, int sixteenths) {
    return (value * sixteenths + 15) / 16;
  }

  // Finds the request that `at` lies in.
  FLASHSMITH_DEVICE void find_request() {
    const int lane = ptx::thread_index() % kWarpSize;
    int begin = 0;
    for (int first = 0; first < problem_.batch; first += kWarpSize) {
      int total;
      const int own = cost_of_request(first + lane) * tiles_of_request_;
      const int own_begin = begin + sum_before(own, lane, total);
      if (begin + total > own_.at) {
        const bool here = own_begin <= own_.at && own_.at < own_begin + own;
        own_.request = ptx::sum_of_lanes(here ? first + lane : 0);
        own_.request_begin = ptx::sum_of_lanes(here ? own_begin : 0);
        own_.steps = steps_of(own_.request);
        return;
      }
      begin += total;
    }
  }

  FLASHSMITH_DEVICE bool next_of_range(KeySplit &split) {
    while (own_.at < own_.end) {
      while (own_.at >= own_.request_begin + cost(own_.steps) * tiles_of_request_) {
        own_.request_begin += cost(own_.steps) * tiles_of_request_;
        own_.steps = steps_of(++own_.request);
      }
      const int tile = quotient(own_.at - own_.request_begin, cost(own_.steps));
      const int first = own_.request_begin + tile * cost(own_.steps) + kFixedCost,
                last = first + own_.steps;
      const int begin = own_.at > first ? own_.at : first, end = own_.end < last ? own_.end : last;
      own_.at = end;
      if (begin >= end) continue;  // the range has only the fixed cost of this work tile
      const int first_block = quotient(first, own_.range);
      split = split_of(own_.request, tile);
      split.begin = begin - first;
      split.end = end - first;
      split.index = ptx::block_index_x() - first_block;
      split.count = quotient(last - 1, own_.range) - first_block + 1;
      // A block has at most one work tile that began before it (slot 2 b) and one that continues
      // behind it (slot 2 b + 1).
      split.first_slot = 2 * first_block + 1;
      split.rest = 2 * first_block;
      split.stride = 2;
      return true;
    }
    return false;
  }

  FLASHSMITH_DEVICE bool next_of_equal_splits(KeySplit &split) {
    while (own_.at < own_.end) {
      // The first splits of all work tiles come first, then the second ones. Splits that short
      // requests lack come last, so that idle blocks are not scattered among the others.
      const int index = own_.splits == 1 ? 0 : quotient(own_.at, tiles());
      const int tile = own_.at - index * tiles();
      const int request = quotient(tile, tiles_of_request_);
      own_.at += ptx::grid_size_x();
      const int steps = steps_of(request), each = steps_of_split(steps);
      const int begin = index * each, end = begin + each < steps ? begin + each : steps;
      if (begin >= end) continue;
      split = split_of(request, tile - request * tiles_of_request_);
      split.begin = begin;
      split.end = end;
      split.index = index;
      split.count = own_.splits == 1 ? 1 : quotient_up(steps, each);
      split.first_slot = split.rest = tile * own_.splits;
      split.stride = 1;
      return true;
    }
    return false;
  }

  FLASHSMITH_DEVICE KeySplit split_of(int request, int tile) const {
    KeySplit split{};
    split.batch = request;
    split.head = quotient(tile, problem_.Q_blocks);
    split.Q_block = tile - split.head * problem_.Q_blocks;
    split.tile = request * tiles_of_request_ + tile;
    return split;
  }
};

}  // namespace flashsmith
