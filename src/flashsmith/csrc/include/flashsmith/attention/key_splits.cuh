// Two split-KV schedules: the keys of the requests that a thread block visits.
//
// Equal splits: each work tile is split into the same number of splits, which blocks take in turn.
// The number is either an argument, so that the result of a request does not depend on the other
// requests, or the number that keeps all blocks busy if the cache is full.
//
// Stream-K: the KV steps of all work tiles, request by request, each work tile with a fixed cost,
// form one sequence. It is cut into equal work ranges, each for one block. At most the first and
// the last work tile of a range are split. The ranges are balanced whatever the lengths are, but
// blocks begin and end within work tiles:
//
//    work tiles   |  0    |  1               |  2 |  3           |
//    blocks       |  0         |  1         |  2         |  3    |
//
// Blocks read all lengths first, because the shorter schedule depends on them. Behind a block's
// first keys, lengths would arrive 2 us later, and a block that changed its schedule would begin
// anew.
#pragma once

#include "flashsmith/attention/work_tiles.cuh"

namespace flashsmith {

// The position of a block in its schedule.
struct SplitsState {
  int splits;   // of every work tile; 0: stream-K
  int at, end;  // work range of stream-K; or next equal split, and their number
  int range;    // length of a block's work range
  int request, request_begin, steps;  // the request that `at` lies in
};

// The splits of a block, one after the other. All warps compute the same splits. kEqual: splits are
// equal, whatever the lengths are, in kernels that have no code for stream-K.
template <typename Traits, bool kEqual = false>
class KeySplits {
  // Costs in KV steps: kFixedCost for every work tile beside its steps, and kRangeCost for a work
  // range, whose ends have to be combined with other blocks' partial results.
  static constexpr int kFixedCost = 1, kRangeCost = Traits::range_cost;
  static constexpr int kAbout = 32;  // stream-K has to gain more than 1 / this
  // Lengths that a lane loads at a time.
  static constexpr int kLengthsAtOnce = 4;

  const DecodeProblem &problem_;
  SplitsState own_;
  const WorkTiles<Traits> tiles_;

 public:
  // Chooses the schedule; whole warps execute this.
  explicit FLASHSMITH_DEVICE KeySplits(const DecodeProblem &problem)
      : problem_(problem),
        own_{.splits = problem.split.splits.value,
             .at = ptx::block_index_x(),
             .end = problem.all_tiles.value * problem.split.splits.value},
        tiles_(problem) {
    if (!kEqual && !problem.split.is_even) use_shorter_schedule();
  }

  // Another object may continue from this state.
  FLASHSMITH_DEVICE const SplitsState &state() const { return own_; }
  FLASHSMITH_DEVICE KeySplits(const DecodeProblem &problem, const SplitsState &state)
      : problem_(problem), own_(state), tiles_(problem) {}

  FLASHSMITH_DEVICE bool next_launch_begins_early() const {
    const SplitArgs &args = problem_.split;
    return own_.splits > 0 ? args.next_begins_early : args.next_begins_early_behind_ranges;
  }

  // Sets the next split, and returns whether there is one.
  FLASHSMITH_DEVICE bool next(KeySplit &split) {
    return kEqual || own_.splits > 0 ? next_of_equal_splits(split) : next_of_range(split);
  }

 private:
  // Reads all lengths. If stream-K is shorter, the equal splits become void, and the splits of the
  // block's work range follow.
  FLASHSMITH_DEVICE void use_shorter_schedule() {
    int maximum = 0, total = 0;  // costs of this lane's requests, of one work tile each
    const auto look_at = [&](int request) {
      const int own = cost_of_request(request);
      maximum = maximum > own ? maximum : own;
      total += own;
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
    const int longest = ptx::max_of_lanes(maximum) - kFixedCost;
    total = ptx::sum_of_lanes(total) * problem_.tiles_of_request.value;
    const int minimum = tiles_.min_steps(longest),
              share = quotient_up(total, problem_.split.n_ranges);
    own_.range = share > minimum ? share : minimum;
    const int by_ranges = of_share(own_.range, problem_.split.times.ranges);
    if (time_of_splits(longest, by_ranges) > by_ranges + by_ranges / kAbout + kRangeCost) {
      use_stream_k(total);
    }
  }

  FLASHSMITH_DEVICE void use_stream_k(int total) {
    own_.splits = 0;
    own_.at = own_.end = 0;  // blocks beyond the ranges leave
    if (ptx::block_index_x() >= problem_.split.n_ranges.value) return;
    const int begin = ptx::block_index_x() * own_.range, end = begin + own_.range;
    own_.at = begin;
    own_.end = end < total ? end : total;
    if (own_.at < own_.end) find_request();
  }

  FLASHSMITH_DEVICE int cost(int steps) const { return steps + kFixedCost; }
  // Returns the cost of one work tile of a request; 0 behind the last request.
  FLASHSMITH_DEVICE int cost_of_request(int request) const {
    return request < problem_.batch ? cost(tiles_.steps_of(request)) : 0;
  }

  // Returns the KV steps of each split of a work tile of `steps` steps.
  FLASHSMITH_DEVICE int steps_of_split(int steps) const {
    const int each = quotient_up(steps, problem_.split.splits);
    if (problem_.split.is_fixed) return each;
    const int minimum = tiles_.min_steps(steps);
    return each > minimum ? each : minimum;
  }

  // Returns the time of equal splits, in KV steps of an SM, if the longest work tile has `steps`,
  // and all have `fair` steps for each SM. Short splits run beside long ones, and leave them their
  // share of the memory bandwidth.
  FLASHSMITH_DEVICE int time_of_splits(int steps, int fair) const {
    const SplitTimes &times = problem_.split.times;
    const int longest = cost(steps_of_split(steps));
    const int equal = of_share(longest, times.all), mixed = fair + of_share(longest, times.last),
              alone = of_share(longest, times.alone);
    const int time = equal < mixed ? equal : mixed;
    return time > alone ? time : alone;
  }
  // Returns the time of KV steps, of which an SM with its share of the memory bandwidth takes each
  // in kWholeTime.
  static FLASHSMITH_DEVICE int of_share(int steps, int time) {
    return quotient_up(steps * time, kWholeTime);
  }

  // Finds the request that `at` lies in.
  FLASHSMITH_DEVICE void find_request() {
    const int lane = ptx::thread_index() % kWarpSize;
    int begin = 0;
    for (int first = 0; first < problem_.batch; first += kWarpSize) {
      int total;
      const int own = cost_of_request(first + lane) * problem_.tiles_of_request.value;
      const int own_begin = begin + sum_before(own, lane, total);
      if (begin + total > own_.at) {
        const bool here = own_begin <= own_.at && own_.at < own_begin + own;
        own_.request = ptx::sum_of_lanes(here ? first + lane : 0);
        own_.request_begin = ptx::sum_of_lanes(here ? own_begin : 0);
        own_.steps = tiles_.steps_of(own_.request);
        return;
      }
      begin += total;
    }
  }

  FLASHSMITH_DEVICE bool next_of_range(KeySplit &split) {
    const int tiles = problem_.tiles_of_request.value;
    while (own_.at < own_.end) {
      while (own_.at >= own_.request_begin + cost(own_.steps) * tiles) {
        own_.request_begin += cost(own_.steps) * tiles;
        own_.steps = tiles_.steps_of(++own_.request);
      }
      const int tile = quotient(own_.at - own_.request_begin, cost(own_.steps));
      const int first = own_.request_begin + tile * cost(own_.steps) + kFixedCost,
                last = first + own_.steps;
      const int begin = own_.at > first ? own_.at : first, end = own_.end < last ? own_.end : last;
      own_.at = end;
      if (begin >= end) continue;  // the range has only the fixed cost of this work tile
      const int first_block = quotient(first, own_.range);
      split = tiles_.split_of(own_.request, tile);
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
      const int index = quotient(own_.at, problem_.all_tiles);
      const int tile = own_.at - index * problem_.all_tiles.value;
      const int request = quotient(tile, problem_.tiles_of_request);
      own_.at += ptx::grid_size_x();
      const int steps = tiles_.steps_of(request), each = steps_of_split(steps);
      const int begin = index * each, end = begin + each < steps ? begin + each : steps;
      if (begin >= end) continue;
      split = tiles_.split_of(request, tile - request * problem_.tiles_of_request.value);
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
};

}  // namespace flashsmith
