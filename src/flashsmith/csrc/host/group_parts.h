// The number of parts into which a backward divides the query heads of each group, by a simulation
// of its tiles.
//
// A tile is a block of keys of a part, and takes a step for each block of queries of each head of
// the part that sees its keys. More parts make tiles shorter, so that the longest end sooner and
// fewer SMs idle at the end. They cost FP32 sums of dK and dV, which are written and read.
// docs/log/backward.md has its predictions beside times of an H200.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace flashsmith {

// Returns the query heads of a part; the last part may have fewer.
constexpr int heads_of_part(int group, int n_parts) { return (group + n_parts - 1) / n_parts; }

// Returns the steps of each tile of one query head of a sequence, first keys first.
inline std::vector<double> steps_of_tiles(double n_q, double n_k, int B_r, int B_c, bool causal) {
  std::vector<double> steps;
  for (double key = 0; key < n_k; key += B_c) {
    const double first = causal ? std::clamp(key - (n_k - n_q), 0., n_q) : 0;
    steps.push_back(std::ceil(n_q / B_r) - std::floor(first / B_r));
  }
  return steps;
}

// The properties of a call that its time depends on.
struct GroupedProblem {
  int group;                  // query heads that share a head of K
  int heads_of_k;             // in all sequences
  int tiles_per_head;         // of the launch: those of packed sequences are mostly empty
  double step_us;             // of one tile
  double sums_us;             // to write and read the sums of one part
  std::vector<double> steps;  // of the tiles of a query head, see steps_of_tiles
  bool has_fewer_steps;       // a window, whose size is not known, hides some of them
  int num_sms;
};

// Returns the steps until the last tile ends. Each tile starts on the SM that is free first, in the
// order of the queue.
//
// heads_together: The number of parts, of all heads of K, whose tiles start together
// (heads_per_group of the kernel's arguments).
inline double end_of_last_tile(const GroupedProblem &p, int n_parts, int heads_together) {
  const int n_heads = p.heads_of_k * n_parts, n_tiles = static_cast<int>(p.steps.size());
  const int per_part = heads_of_part(p.group, n_parts);
  std::vector<double> free_at(p.num_sms, 0.);  // a heap whose front is the least
  double last = 0;
  for (int first = 0; first < n_heads; first += heads_together) {
    for (int tile = 0; tile < n_tiles; tile++) {
      for (int head = first; head < std::min(first + heads_together, n_heads); head++) {
        const int heads = std::min(per_part, p.group - head % n_parts * per_part);
        std::pop_heap(free_at.begin(), free_at.end(), std::greater<>());
        free_at.back() += heads * p.steps[tile];
        last = std::max(last, free_at.back());
        std::push_heap(free_at.begin(), free_at.end(), std::greater<>());
      }
    }
  }
  return last;
}

// Returns the number of parts that takes the least time; each has a head at least. The fewest, if
// several are equal. The more tiles an SM has, the less parts save, and the longer a simulation
// takes: of many tiles only whole groups and single heads come into question; and of fewer steps
// than are known only whole groups, because sums would take a larger share of their time.
template <typename HeadsTogether>
int best_parts(const GroupedProblem &p, const HeadsTogether &heads_together) {
  constexpr int kManyTilesOfSm = 4, kMaxTilesOfSm = 8;
  constexpr double kLaunchUs = 3, kTileUs = 1;  // a tile is drawn and begins, even if it is empty
  const int n_tiles = static_cast<int>(p.steps.size()), of_all_heads = p.heads_of_k * n_tiles;
  const bool all = of_all_heads <= kManyTilesOfSm * p.num_sms;
  if (!all && (p.has_fewer_steps || of_all_heads > kMaxTilesOfSm * p.num_sms)) return 1;
  const int stride = all ? 1 : std::max(p.group - 1, 1);
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int n = 1; n <= p.group; n += stride) {
    if (n > 1 && heads_of_part(p.group, n) == heads_of_part(p.group, n - 1)) {
      continue;  // fewer parts have the same heads
    }
    const int n_heads = p.heads_of_k * n;
    double time = end_of_last_tile(p, n, heads_together(n_heads)) * p.step_us;
    time += static_cast<double>(n_heads) * p.tiles_per_head / p.num_sms * kTileUs;
    if (n > 1) time += kLaunchUs + n * p.sums_us;
    if (time < least) {
      least = time;
      best = n;
    }
  }
  return best;
}

}  // namespace flashsmith
