// The partial results of the splits of a work tile in global memory, and how they are combined to
// rows of O. They are FP32 sums, relative to a reference of each row.
#pragma once

#include "flashsmith/attention/decode_rows.cuh"
#include "flashsmith/attention/output.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/global_exchange.cuh"

namespace flashsmith {

// A chunk of a row's partial result: sums over keys, and the statistics that they are relative to.
struct PartialResult {
  float O[kPartialChunk];
  SoftmaxStats stats;
};

// Returns the weight of a partial result relative to another reference. A row that has seen no key
// has weight 0: -inf - -inf must not become NaN.
FLASHSMITH_DEVICE float rescaled(const SoftmaxStats &row_stats, float reference) {
  return row_stats.sum == 0.f ? 0.f : ptx::exp2_approx(row_stats.reference - reference);
}

// Combines partial results in the order of the keys: every `step`th from `first` to before `end`.
// load(part) returns one; the loads of kAtOnce partial results are in flight at a time.
template <int kAtOnce, typename Load>
FLASHSMITH_DEVICE PartialResult combine_partials(int first, int end, int step, Load load) {
  PartialResult all{.O = {}, .stats = {.reference = -INFINITY, .sum = 0.f, .kept = 1.f}};
#pragma unroll 1
  for (; first < end; first += kAtOnce * step) {
    PartialResult parts[kAtOnce];
    float reference = all.stats.reference;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      parts[i].stats = {.reference = -INFINITY, .sum = 0.f, .kept = 1.f};
      if (first + i * step < end) parts[i] = load(first + i * step);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) reference = fmaxf(reference, parts[i].stats.reference);
    const float kept = rescaled(all.stats, reference);
    all.stats.sum *= kept;
#pragma unroll
    for (int k = 0; k < kPartialChunk; k++) all.O[k] *= kept;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (first + i * step >= end) break;
      const float weight = rescaled(parts[i].stats, reference);
      all.stats.sum += parts[i].stats.sum * weight;
#pragma unroll
      for (int k = 0; k < kPartialChunk; k++) all.O[k] = fmaf(parts[i].O[k], weight, all.O[k]);
    }
    all.stats.reference = reference;
  }
  return all;
}

FLASHSMITH_DEVICE SoftmaxStats softmax_stats(uint32_t reference, uint32_t sum) {
  return {.reference = ptx::bits_float(reference), .sum = ptx::bits_float(sum), .kept = 1.f};
}

FLASHSMITH_DEVICE PartialResult partial_result(const ptx::Chunk (&half)[2],
                                               const SoftmaxStats &row_stats) {
  PartialResult own{.O = {}, .stats = row_stats};
#pragma unroll
  for (int i = 0; i < kPartialChunk; i++) own.O[i] = ptx::bits_float(half[i / 4].word[i % 4]);
  return own;
}

// The partial results of threads, side by side in shared memory.
class ThreadPartials {
  static constexpr int kHalfBytes = kPartialChunk / 2 * sizeof(float);
  const ptx::shared_address shared_;

 public:
  explicit FLASHSMITH_DEVICE ThreadPartials(ptx::shared_address shared) : shared_(shared) {}

  FLASHSMITH_DEVICE void put(int place, const PartialResult &own) const {
    const ptx::shared_address to = shared_ + place * kThreadPartialBytes;
#pragma unroll
    for (int i = 0; i < kPartialChunk; i++) {
      ptx::store_shared_4(to + i * sizeof(float), ptx::float_bits(own.O[i]));
    }
    const ptx::shared_address row_stats = to + 2 * kHalfBytes;
    ptx::store_shared_4(row_stats, ptx::float_bits(own.stats.reference));
    ptx::store_shared_4(row_stats + sizeof(float), ptx::float_bits(own.stats.sum));
  }
  FLASHSMITH_DEVICE PartialResult get(int place) const {
    const ptx::shared_address from = shared_ + place * kThreadPartialBytes;
    return load(from, from + 2 * kHalfBytes);
  }

  // Combines the partial results that thread i of each group of n threads has put there, kAtOnce at
  // a time.
  template <int kAtOnce = 2>
  FLASHSMITH_DEVICE PartialResult of_groups(int i, int n, int groups) const {
    return combine_partials<kAtOnce>(0, groups, 1, [&](int group) { return get(group * n + i); });
  }

  // Loads the partial result that a team has stored at these addresses.
  static FLASHSMITH_DEVICE PartialResult load(ptx::shared_address elements,
                                              ptx::shared_address row_stats) {
    ptx::Chunk half[2];
    ptx::load_shared_16(half[0], elements);
    ptx::load_shared_16(half[1], elements + kHalfBytes);
    const uint32_t reference = ptx::load_shared_4(row_stats);
    return partial_result(half,
                          softmax_stats(reference, ptx::load_shared_4(row_stats + sizeof(float))));
  }
};

// Threads that combine splits in groups: thread i of group g takes every `groups`th split of a
// chunk of a row, from split g on, and thread i of each group has the same chunk.
struct ThreadGroups {
  int groups, of_group;  // their number, and the threads of one
  int thread;
  ThreadPartials shared;  // of all threads

  FLASHSMITH_DEVICE int group() const { return thread / of_group; }
  FLASHSMITH_DEVICE int place() const { return thread % of_group; }
};

// Returns the scale of the values of an FP8 cache where it is the same for all keys.
template <typename Traits, typename Args>
FLASHSMITH_DEVICE float value_scale(const Args &args, const KeySplit &split) {
  if constexpr (Traits::fp8_cache && !Traits::per_token_scale) {
    return load_scale(args.V_scale, split.batch, split.head);
  } else {
    return 1.f;
  }
}

// Counts a split whose partial results are stored, as all its threads know. Returns whether it is
// the last of `count` splits, which resets the counter. Called by one thread.
FLASHSMITH_DEVICE bool arrive_last(uint32_t *arrivals, int count) {
  const bool last = ptx::thread_arrive_global(arrivals) == static_cast<uint32_t>(count) - 1;
  if (last) ptx::thread_store_global_4(arrivals, 0);
  return last;
}

// The partial results of one work tile. `row` is a row of the work tile, `chunk` a chunk of a row.
template <typename Traits>
class PartialResults {
  const DecodeProblem &problem_;
  const KeySplit &split_;
  const DecodeRows<Traits> rows_;

 public:
  FLASHSMITH_DEVICE PartialResults(const DecodeProblem &problem, const KeySplit &split)
      : problem_(problem), split_(split), rows_(problem, split) {}

  FLASHSMITH_DEVICE const DecodeRows<Traits> &rows() const { return rows_; }

  // The following functions return the addresses of a slot's elements of a row, from a column on,
  // and of the row's statistics.
  FLASHSMITH_DEVICE float *elements(int slot, int row, int column) const {
    const int64_t rows = static_cast<int64_t>(slot) * Traits::B_r + row;
    return problem_.split.partial_O + rows * Traits::d_head + column;
  }
  FLASHSMITH_DEVICE float *stats(int slot, int row) const {
    const int64_t rows = static_cast<int64_t>(slot) * Traits::B_r + row;
    return problem_.split.partial_stats + rows * kStatsPerRow;
  }

  // Stores this split's partial result.
  FLASHSMITH_DEVICE void store_partial(const PartialResult &row_sums, int row, int chunk) const {
    if (row >= rows_.count()) return;
    const int slot = split_.slot(split_.index);
    float *place = elements(slot, row, chunk * kPartialChunk);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      ptx::Chunk words;
#pragma unroll
      for (int i = 0; i < 4; i++) words.word[i] = ptx::float_bits(row_sums.O[half * 4 + i]);
      ptx::thread_store_global_16(place + half * 4, words);
    }
    if (chunk == 0) store_partial_stats(row_sums.stats, row);
  }
  FLASHSMITH_DEVICE void store_partial_stats(const SoftmaxStats &row_stats, int row) const {
    float *place = stats(split_.slot(split_.index), row);
    ptx::thread_store_global_4(place, ptx::float_bits(row_stats.reference));
    ptx::thread_store_global_4(place + 1, ptx::float_bits(row_stats.sum));
  }

  // Loads the statistics of a row from split i.
  FLASHSMITH_DEVICE SoftmaxStats load_partial_stats(int i, int row) const {
    SoftmaxStats own{.reference = 0.f, .sum = 0.f, .kept = 1.f};
    ptx::load_global_cg_8(own.reference, own.sum, stats(split_.slot(i), row));
    return own;
  }

  // Combines a chunk over every `step`th split, with the loads of kAtOnce splits in flight at a
  // time.
  template <int kAtOnce>
  FLASHSMITH_DEVICE PartialResult combined(int row, int chunk, int first, int step) const {
    const auto load = [&](int i) {
      const float *place = elements(split_.slot(i), row, chunk * kPartialChunk);
      const ptx::Chunk half[2] = {ptx::load_global_cg_16(place),
                                  ptx::load_global_cg_16(place + kPartialChunk / 2)};
      return partial_result(half, load_partial_stats(i, row));
    };
    return combine_partials<kAtOnce>(first, split_.count, step, load);
  }

  // Combines a chunk of a row by all groups, kGroupsAtOnce at a time, and returns it to the first.
  // `here`: whether the thread's warp has a chunk. meet() is a barrier of all threads.
  template <int kGroupsAtOnce, typename Meet>
  FLASHSMITH_DEVICE PartialResult combined_by(const ThreadGroups &threads, int row, int chunk,
                                              bool here, Meet meet) const {
    PartialResult own;
    if (here) own = combined<kSplitsAtOnce>(row, chunk, threads.group(), threads.groups);
    if (threads.groups > 1) {
      if (here) threads.shared.put(threads.thread, own);
      meet();
      if (here && threads.group() == 0) {
        own = threads.shared.of_groups<kGroupsAtOnce>(threads.place(), threads.of_group,
                                                      threads.groups);
      }
    }
    return own;
  }

  // Writes a chunk of a row of O, and with the first chunk the row's LSE. `V_scale` is the factor
  // of the values.
  FLASHSMITH_DEVICE void store(const PartialResult &sums, int row, int chunk,
                               float V_scale = 1.f) const {
    using value_t = typename Traits::value_t;
    if (row >= rows_.count()) return;
    const int head = rows_.head(row);
    const SoftmaxStats row_stats = with_sink<Traits>(sums.stats, problem_, head);
    const float factor = row_stats.sum == 0.f ? 0.f : row_stats.kept / row_stats.sum * V_scale;
    if (!Traits::padded || chunk * kPartialChunk < problem_.d_v) {
      ptx::Chunk words;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        words.word[i] = ptx::pack<value_t>(sums.O[2 * i] * factor, sums.O[2 * i + 1] * factor);
      }
      ptx::thread_store_global_16(static_cast<value_t *>(problem_.O) +
                                      rows_.offset(problem_.O_strides, split_.batch, row) +
                                      chunk * kPartialChunk,
                                  words);
    }
    if (chunk == 0) store_log_sum_exp(row_stats, row);
  }
  FLASHSMITH_DEVICE void store_log_sum_exp(const SoftmaxStats &row_stats, int row) const {
    if (problem_.lse == nullptr) return;
    const int64_t place = static_cast<int64_t>(split_.batch) * problem_.n_heads + rows_.head(row);
    ptx::thread_store_global_4(problem_.lse + place * problem_.seq_len_q + rows_.query(row),
                               ptx::float_bits(row_stats.log_sum_exp()));
  }
};

}  // namespace flashsmith
