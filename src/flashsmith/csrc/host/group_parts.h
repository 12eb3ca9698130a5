// The number of parts into which a backward divides the query heads of each group, by a simulation
// of its tiles.
//
// A tile is a block of keys of a part, and takes a step for each block of queries of each head of
// the part that sees its keys. More parts make tiles shorter, so that the longest end sooner and
// fewer SMs idle at the end; and tiles of fewer heads stay closer together, so that more of the
// queries that they visit are in L2. Parts cost FP32 sums of dK and dV, which are written and read.
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

constexpr int kManyTilesOfSm = 4, kSimulatedTilesOfSm = 16;

// Sequences of the same lengths.
struct LikeSequences {
  int heads_of_k;             // of all these sequences
  std::vector<double> steps;  // of the tiles of a query head, see steps_of_tiles

  int n_tiles() const { return static_cast<int>(steps.size()); }
};

// The properties of a call that its time depends on.
struct GroupedProblem {
  int group;                             // query heads that share a head of K
  std::vector<LikeSequences> sequences;  // in the order of the queue
  int64_t n_empty;                       // tiles that are launched, but have no keys
  double step_us;                        // of one tile
  double sums_us;                        // to write and read the sums of one part
  bool has_fewer_steps;                  // a window, whose size is not known, hides some of them
  double drift;  // share of its time by which each further head slows down a step
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
// to take clearly less, as their sums take memory. So many tiles that a simulation would take long
// end together anyway. Of fewer steps than are known only whole groups come into question where an
// SM has several tiles, because sums would take a larger share of their time.
template <typename HeadsTogether>
int best_parts(const GroupedProblem &p, const HeadsTogether &heads_together) {
  constexpr double kLaunchUs = 3, kTileUs = 1;  // a tile is drawn and begins, even if it is empty
  constexpr double kClearly = 0.99;
  const int64_t n_tiles = p.n_tiles();
  if (p.has_fewer_steps && p.has_many_tiles()) return 1;
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int n = 1; n <= p.group; n++) {
    const int heads = heads_of_part(p.group, n);
    if (n > 1 && heads == heads_of_part(p.group, n - 1)) continue;  // fewer parts have the same
    const bool is_short = n * n_tiles <= kSimulatedTilesOfSm * p.num_sms;
    double time = is_short ? end_of_last_tile(p, n, heads_together) : steps_of_sm(p);
    time *= p.step_us * (1 + p.drift * (heads - 1));
    time += static_cast<double>(n) * (n_tiles + p.n_empty) / p.num_sms * kTileUs;
    if (n > 1) time += kLaunchUs + n * p.sums_us;
    if (time < kClearly * least) {
      least = time;
      best = n;
    }
  }
  return best;
}

}  // namespace flashsmith
