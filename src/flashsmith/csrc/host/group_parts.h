// The number of parts into which a backward divides the query heads of each group, by a simulation
// of its tiles.
//
// A tile is a block of keys of a part, and takes a step for each block of queries of each head of
// the part that sees its keys. More parts make tiles shorter, so that the longest end sooner and
// fewer SMs idle at the end; and tiles of fewer heads stay closer together, so that more of the
// queries that they visit are in L2. Parts cost FP32 sums of dK and dV: those of each part are
// written and read, or those to which all parts add are cleared and read.
// docs/log/backward.md has its predictions beside times of an H200.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
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

// Returns lengths that sequences may have of which only the longest and the mean are known, longest
// first: those of the curve longest x^p, at as many x from 0 to 1.
inline std::vector<double> likely_lengths(int n, double longest, double mean) {
  std::vector<double> lengths;
  const double power = longest / std::max(mean, 1.) - 1;
  for (int i = n; i > 0; i--) lengths.push_back(longest * std::pow((i - 0.5) / n, power));
  return lengths;
}

constexpr int kManyTilesOfSm = 4;

// Sequences of the same lengths.
struct LikeSequences {
  int heads_of_k;             // of all these sequences
  std::vector<double> steps;  // of the tiles of a query head, see steps_of_tiles

  int n_tiles() const { return static_cast<int>(steps.size()); }
};

// Returns the microseconds of a step of a tile on an H200.
constexpr double step_us(int d_head, int B_c) { return 2. * d_head / 128 * B_c / 128; }

// The costs of parts, in microseconds.
struct PartCosts {
  double step;
  double tile;   // to draw a tile, to begin and to end it
  double sums;   // to clear and to read sums to which all parts add
  double part;   // to write and to read the sums of a part, if it has its own
  double drift;  // share of its time by which each further head of a part slows down a step
};

// Returns the costs that were measured on an H200. For parts with sums of their own, a tile's were
// not told apart from those of its sums.
//
// adds: Whether all parts add to the same sums.
// drifts: Whether tiles drift apart, above a d_head whose queries L2 holds anyway.
// sums_bytes: Those of all parts, or of one that has its own.
constexpr PartCosts part_costs(bool adds, bool drifts, double step, int64_t sums_bytes) {
  constexpr double kBytesPerUs = 4e6;
  const double moved = 2 * static_cast<double>(sums_bytes) / kBytesPerUs;
  if (adds) {
    return {
        .step = step, .tile = 1.5 * step, .sums = moved, .part = 0, .drift = drifts ? 0.006 : 0};
  }
  return {.step = step, .tile = 1, .sums = 0, .part = moved, .drift = drifts ? 0.016 : 0};
}

// The properties of a call that its time depends on.
struct GroupedProblem {
  int group;                             // query heads that share a head of K
  std::vector<LikeSequences> sequences;  // in the order of the queue
  int64_t n_empty;                       // tiles that are launched, but have no keys
  bool has_fewer_steps;                  // a window, whose size is not known, hides some of them
  PartCosts costs;
  int num_sms;

  int64_t n_tiles() const {
    int64_t n = 0;
    for (const LikeSequences &each : sequences) n += int64_t{each.heads_of_k} * each.n_tiles();
    return n;
  }
  bool has_many_tiles() const { return n_tiles() > kManyTilesOfSm * num_sms; }
};

// Returns the steps until the last tile ends. Each tile starts on the SM that is free first, in the
// order of the queue.
//
// heads_together(n_tiles, n_heads): Returns the number of parts, of `n_heads` of all heads of K,
// whose tiles start together, `n_tiles` of each.
template <typename HeadsTogether>
double end_of_last_tile(const GroupedProblem &p, int n_parts, const HeadsTogether &heads_together) {
  const int per_part = heads_of_part(p.group, n_parts);
  std::vector<double> free_at(p.num_sms, 0.);  // a heap whose front is the least
  double last = 0;
  const auto start = [&](double steps) {
    std::pop_heap(free_at.begin(), free_at.end(), std::greater<>());
    free_at.back() += steps;
    last = std::max(last, free_at.back());
    std::push_heap(free_at.begin(), free_at.end(), std::greater<>());
  };
  for (const LikeSequences &sequences : p.sequences) {
    const int n_heads = sequences.heads_of_k * n_parts;
    const int together = heads_together(sequences.n_tiles(), n_heads);
    for (int first = 0; first < n_heads; first += together) {
      for (const double steps : sequences.steps) {
        for (int head = first; head < std::min(first + together, n_heads); head++) {
          start(steps * std::min(per_part, p.group - head % n_parts * per_part));
        }
      }
    }
  }
  return last;
}

// Returns the steps of an SM if all SMs end together.
inline double steps_of_sm(const GroupedProblem &p) {
  double all = 0;
  for (const LikeSequences &each : p.sequences) {
    all += each.heads_of_k * std::accumulate(each.steps.begin(), each.steps.end(), 0.);
  }
  return all * p.group / p.num_sms;
}

// Returns the number of parts that takes the least time; each has a head at least. More parts have
// to take clearly less where each has sums, as these take memory. So many tiles of an SM that a
// simulation would take long end together anyway, and fewer where each part has sums, whose costs
// were measured so. Of fewer steps than are known only whole groups come into question where an SM
// has several tiles, because sums would take a larger share of their time.
template <typename HeadsTogether>
int best_parts(const GroupedProblem &p, const HeadsTogether &heads_together) {
  constexpr double kLaunchUs = 3, kEmptyTileUs = 1;
  const bool has_own_sums = p.costs.part > 0;
  const double clearly = has_own_sums ? 0.99 : 1;
  const int max_simulated = (has_own_sums ? 16 : 40) * p.num_sms;
  const int64_t n_tiles = p.n_tiles();
  if (p.has_fewer_steps && p.has_many_tiles()) return 1;
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int n = 1; n <= p.group; n++) {
    const int heads = heads_of_part(p.group, n);
    if (n > 1 && heads == heads_of_part(p.group, n - 1)) continue;  // fewer parts have the same
    double time =
        n * n_tiles <= max_simulated ? end_of_last_tile(p, n, heads_together) : steps_of_sm(p);
    time *= p.costs.step * (1 + p.costs.drift * (heads - 1));
    time += n * (n_tiles * p.costs.tile + p.n_empty * kEmptyTileUs) / p.num_sms;
    if (n > 1) time += kLaunchUs + p.costs.sums + n * p.costs.part;
    if (time < clearly * least) {
      least = time;
      best = n;
    }
  }
  return best;
}

}  // namespace flashsmith
