// The number of parts into which a backward divides the query heads of each group, by a model of
// its time.
//
// A tile is a block of keys of a part, and takes a step for each block of queries of each head of
// the part that sees its keys. More parts make tiles shorter, so that the longest end sooner and
// fewer SMs idle at the end. They cost FP32 sums of dK and dV, which are written and read.
// docs/log/backward.md compares the model with a simulation of the queue.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace flashsmith {

// The tiles of one query head of one sequence, in steps.
struct HeadSteps {
  double n_tiles, longest, total;

  // n_q, n_k: lengths of the sequence. A causal mask shows the first keys to as many queries as
  // there are of the shorter side, and each further tile to a block of keys fewer.
  static HeadSteps of(double n_q, double n_k, int B_r, int B_c, bool causal) {
    const double seen = causal ? std::min(n_q, n_k) : n_q;
    const double n_tiles = std::ceil(n_k / B_c), longest = std::ceil(seen / B_r);
    const double on_diagonal = causal ? std::min(n_tiles, std::ceil(seen / B_c)) : 0;
    return {n_tiles, longest, (n_tiles - on_diagonal) * longest + on_diagonal * (longest + 1) / 2};
  }
};

// The properties of a call that its time depends on.
struct GroupedProblem {
  int group;             // query heads that share a head of K
  int heads_of_k;        // in all sequences
  int tiles_per_head;    // of the launch: those of packed sequences are mostly empty
  double step_us;        // of one tile
  double sums_us;        // to write and read the sums of one part
  HeadSteps mean;        // of a sequence
  double longest;        // steps of the longest tile of a query head, of all sequences
  bool causal, ordered;  // whether blocks of keys add to dQ in order
  bool varlen;           // whether sequences differ
  int num_sms;
};

// Returns the microseconds that a call takes beside what does not depend on its parts.
//
// heads_together: The number of parts, of all heads of K, whose tiles start together
// (heads_per_group of the kernel's arguments).
inline double time_of_parts(const GroupedProblem &p, int n_parts, int heads_together) {
  // A tile is drawn and begins in a microsecond, even if its keys are beyond their sequence.
  constexpr double kLaunchUs = 3, kTileUs = 1;
  const double n_heads = static_cast<double>(p.heads_of_k) * n_parts;  // as tiles_in_groups counts
  const double heads_per_part = (p.group + n_parts - 1) / n_parts;
  const double n_tiles = n_heads * p.mean.n_tiles, longest = heads_per_part * p.longest;
  double total = p.heads_of_k * p.group * p.mean.total;
  if (p.causal && p.ordered) {
    // After each head of its part, a tile waits for those before it that run at the same time: a
    // step for every B_r of their keys, half of them on average.
    const double running = std::min(p.mean.n_tiles, p.num_sms / double(heads_together));
    const double wait =
        std::max(running - 1, 0.) / 2 * p.mean.longest / std::max(p.mean.n_tiles, 1.);
    total += p.heads_of_k * (p.group - n_parts) * p.mean.n_tiles * wait;
  }
  double steps;
  if (p.causal || p.varlen) {
    // The longest tiles of the last heads start when the short tiles of those before them end, and
    // are late by half of what they take longer than their share of an SM: they fit into the gaps
    // of an even number of groups, and stick out of an odd one.
    const double late = std::max(longest - total * heads_together / n_heads / p.num_sms, 0.) / 2;
    steps = std::max(longest, total / p.num_sms + late);
  } else {
    steps = std::max(longest, std::ceil(n_tiles / p.num_sms) * total / n_tiles);
  }
  const double drawn = n_heads * p.tiles_per_head / p.num_sms;
  return steps * p.step_us + drawn * kTileUs + (n_parts > 1 ? kLaunchUs + n_parts * p.sums_us : 0);
}

// Returns the number of parts that takes the least time; each has a head at least. The fewest, if
// several are equal.
template <typename HeadsTogether>
int best_parts(const GroupedProblem &problem, const HeadsTogether &heads_together) {
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int n = 1; n <= problem.group; n++) {
    const int heads = (problem.group + n - 1) / n;
    if ((problem.group + heads - 1) / heads != n) continue;  // fewer parts have the same heads
    const double time = time_of_parts(problem, n, heads_together(problem.heads_of_k * n));
    if (time < least) {
      least = time;
      best = n;
    }
  }
  return best;
}

}  // namespace flashsmith
