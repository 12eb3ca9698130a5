// A split-KV schedule for requests of unlike lengths: splits of about the same length, one for each
// block. A request has as many as its length asks for.
//
// Beside stream-K (key_splits.cuh) a block begins and ends once, and finds its split in fewer
// instructions. The last split of a work tile is shorter, so that each should have several.
#pragma once

#include "flashsmith/attention/work_tiles.cuh"

namespace flashsmith {

template <typename Traits>
class KeyParts {
  const DecodeProblem &problem_;
  const WorkTiles<Traits> tiles_;
  const int lane_ = ptx::thread_index() % kWarpSize;

 public:
  explicit FLASHSMITH_DEVICE KeyParts(const DecodeProblem &problem)
      : problem_(problem), tiles_(problem) {}

  // Sets the block's split, and returns whether there is one. Whole warps execute this. The blocks
  // of a request come behind those of the requests before, and have the first splits of its work
  // tiles, then the second ones; they have the slots of their own numbers.
  FLASHSMITH_DEVICE bool find(KeySplit &split) const {
    const int block = ptx::block_index_x(), own = steps_of(lane_), part = steps_of_part(own);
    int begin = 0;  // the blocks of the requests before
    for (int first = 0; first < problem_.batch; first += kWarpSize) {
      const int steps = first == 0 ? own : steps_of(first + lane_);
      int total;
      const int blocks = quotient_up(steps, part) * problem_.tiles_of_request.value;
      const int own_begin = begin + sum_before(blocks, lane_, total);
      if (begin + total > block) {
        const bool here = own_begin <= block && block < own_begin + blocks;
        set(split, ptx::sum_of_lanes(here ? first + lane_ : 0),
            ptx::sum_of_lanes(here ? own_begin : 0), ptx::sum_of_lanes(here ? steps : 0), part);
        return true;
      }
      begin += total;
    }
    return false;
  }

 private:
  // Returns the KV steps of a request's work tiles; 0 behind the last request.
  FLASHSMITH_DEVICE int steps_of(int request) const {
    return request < problem_.batch ? tiles_.steps_of(request) : 0;
  }

  // Returns the max number of KV steps of a split: about the smallest one with which there are no
  // more splits than blocks. `own`: the steps of this lane's first request.
  FLASHSMITH_DEVICE int steps_of_part(int own) const {
    int longest = own;
    const int total = sum(own, [&](int steps) {
      longest = longest > steps ? longest : steps;
      return steps;
    });
    const Divisor &most = problem_.split.n_ranges;
    const int share = quotient_up(total, most),
              minimum = tiles_.min_steps(ptx::max_of_lanes(longest));
    int part = share > minimum ? share : minimum;
    while (true) {
      const int blocks = sum(own, [&](int steps) { return quotient_up(steps, part); });
      if (blocks <= most.value) return part;
      part = quotient(part * blocks, most) + 1;
    }
  }

  // Returns the sum of of_steps(steps) over all work tiles. `own`: as above.
  template <typename OfSteps>
  FLASHSMITH_DEVICE int sum(int own, OfSteps of_steps) const {
    int total = of_steps(own);
#pragma unroll 1
    for (int first = kWarpSize; first < problem_.batch; first += kWarpSize) {
      total += of_steps(steps_of(first + lane_));
    }
    return ptx::sum_of_lanes(total) * problem_.tiles_of_request.value;
  }

  // Sets the split of the block. `first`: the first block of the request.
  FLASHSMITH_DEVICE void set(KeySplit &split, int request, int first, int steps, int part) const {
    const int place = ptx::block_index_x() - first, tiles = problem_.tiles_of_request.value;
    const int index = quotient(place, problem_.tiles_of_request), tile = place - index * tiles;
    const int count = quotient_up(steps, part), each = quotient_up(steps, count);
    split = tiles_.split_of(request, tile);
    split.begin = index * each;
    split.end = split.begin + each < steps ? split.begin + each : steps;
    split.index = index;
    split.count = count;
    split.first_slot = split.rest = first + tile;
    split.stride = tiles;
  }
};

}  // namespace flashsmith
