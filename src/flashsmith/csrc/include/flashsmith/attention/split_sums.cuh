// The partial results of the splits of a work tile in global memory, and how they are combined to
// rows of O. They are FP32 sums, relative to a reference of each row.
#pragma once

#include "flashsmith/attention/decode_rows.cuh"
#include "flashsmith/attention/output.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/global_exchange.cuh"

namespace flashsmith {

// A chunk of a row's partial result: sums over keys, and the statistics that they are relative to.
struct RowSums {
  float O[kSumChunk];
  RowTotal total;
};

// Returns the weight of a partial result relative to another reference. A row that has seen no key
// has weight 0: -inf - -inf must not become NaN.
FLASHSMITH_DEVICE float rescaled(const RowTotal &total, float reference) {
  return total.sum == 0.f ? 0.f : ptx::exp2_approx(total.reference - reference);
}

// Combines partial results in the order of the keys: every `step`th from `first` to before `end`.
// load(part) returns one; the loads of kAtOnce partial results are in flight at a time.
template <int kAtOnce, typename Load>
FLASHSMITH_DEVICE RowSums merge_parts(int first, int end, int step, Load load) {
  RowSums all{.O = {}, .total = {.reference = -INFINITY, .sum = 0.f, .kept = 1.f}};
#pragma unroll 1
  for (; first < end; first += kAtOnce * step) {
    RowSums parts[kAtOnce];
    float reference = all.total.reference;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      parts[i].total = {.reference = -INFINITY, .sum = 0.f, .kept = 1.f};
      if (first + i * step < end) parts[i] = load(first + i * step);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) reference = fmaxf(reference, parts[i].total.reference);
    const float kept = rescaled(all.total, reference);
    all.total.sum *= kept;
#pragma unroll
    for (int k = 0; k < kSumChunk; k++) all.O[k] *= kept;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (first + i * step >= end) break;
      const float weight = rescaled(parts[i].total, reference);
      all.total.sum += parts[i].total.sum * weight;
#pragma unroll
      for (int k = 0; k < kSumChunk; k++) all.O[k] = fmaf(parts[i].O[k], weight, all.O[k]);
    }
    all.total.reference = reference;
  }
  return all;
}

FLASHSMITH_DEVICE RowTotal row_total(uint32_t reference, uint32_t sum) {
  return {.reference = ptx::bits_float(reference), .sum = ptx::bits_float(sum), .kept = 1.f};
}

FLASHSMITH_DEVICE RowSums row_sums(const ptx::Chunk (&half)[2], const RowTotal &total) {
  RowSums own{.O = {}, .total = total};
#pragma unroll
  for (int i = 0; i < kSumChunk; i++) own.O[i] = ptx::bits_float(half[i / 4].word[i % 4]);
  return own;
}

// The partial results of threads, side by side in shared memory.
class ThreadSums {
  static constexpr int kHalfBytes = kSumChunk / 2 * sizeof(float);
  const ptx::shared_address shared_;

 public:
  explicit FLASHSMITH_DEVICE ThreadSums(ptx::shared_address shared) : shared_(shared) {}

  FLASHSMITH_DEVICE void put(int place, const RowSums &own) const {
    const ptx::shared_address to = shared_ + place * kThreadSumBytes;
#pragma unroll
    for (int i = 0; i < kSumChunk; i++) {
      ptx::store_shared_4(to + i * sizeof(float), ptx::float_bits(own.O[i]));
    }
    const ptx::shared_address total = to + 2 * kHalfBytes;
    ptx::store_shared_4(total, ptx::float_bits(own.total.reference));
    ptx::store_shared_4(total + sizeof(float), ptx::float_bits(own.total.sum));
  }
  FLASHSMITH_DEVICE RowSums get(int place) const {
    const ptx::shared_address from = shared_ + place * kThreadSumBytes;
    return load(from, from + 2 * kHalfBytes);
  }

  // Combines the partial results that thread i of each group of n threads has put there.
  FLASHSMITH_DEVICE RowSums of_groups(int i, int n, int groups) const {
    return merge_parts<2>(0, groups, 1, [&](int group) { return get(group * n + i); });
  }

  // Loads the partial result that a team has stored at these addresses.
  static FLASHSMITH_DEVICE RowSums load(ptx::shared_address elements, ptx::shared_address total) {
    ptx::Chunk half[2];
    ptx::load_shared_16(half[0], elements);
    ptx::load_shared_16(half[1], elements + kHalfBytes);
    const uint32_t reference = ptx::load_shared_4(total);
    return row_sums(half, row_total(reference, ptx::load_shared_4(total + sizeof(float))));
  }
};

// Returns the scale of the values of an FP8 cache where it is the same for all keys.
template <typename Traits, typename Args>
FLASHSMITH_DEVICE float value_scale(const Args &args, const KeySplit &split) {
  if constexpr (Traits::fp8_cache && !Traits::token_scales) {
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
class SplitSums {
  const DecodeProblem &problem_;
  const KeySplit &split_;
  const DecodeRows<Traits> rows_;

 public:
  FLASHSMITH_DEVICE SplitSums(const DecodeProblem &problem, const KeySplit &split)
      : problem_(problem), split_(split), rows_(problem, split) {}

  FLASHSMITH_DEVICE const DecodeRows<Traits> &rows() const { return rows_; }

  // These return the addresses of a slot's elements of a row, from a column on, and of the row's
  // statistics.
  FLASHSMITH_DEVICE float *elements(int slot, int row, int column) const {
    const int64_t rows = static_cast<int64_t>(slot) * Traits::B_r + row;
    return problem_.split.partial_O + rows * Traits::d_head + column;
  }
  FLASHSMITH_DEVICE float *totals(int slot, int row) const {
    const int64_t rows = static_cast<int64_t>(slot) * Traits::B_r + row;
    return problem_.split.partial_totals + rows * kRowTotals;
  }

  // Stores this split's partial result.
  FLASHSMITH_DEVICE void hand_on(const RowSums &row_sums, int row, int chunk) const {
    if (row >= rows_.count()) return;
    const int slot = split_.slot(split_.index);
    float *place = elements(slot, row, chunk * kSumChunk);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      ptx::Chunk words;
#pragma unroll
      for (int i = 0; i < 4; i++) words.word[i] = ptx::float_bits(row_sums.O[half * 4 + i]);
      ptx::thread_store_global_16(place + half * 4, words);
    }
    if (chunk == 0) hand_on_total(row_sums.total, row);
  }
  FLASHSMITH_DEVICE void hand_on_total(const RowTotal &total, int row) const {
    float *place = totals(split_.slot(split_.index), row);
    ptx::thread_store_global_4(place, ptx::float_bits(total.reference));
    ptx::thread_store_global_4(place + 1, ptx::float_bits(total.sum));
  }

  // Loads the statistics of a row from split i.
  FLASHSMITH_DEVICE RowTotal handed_total(int i, int row) const {
    const float *place = totals(split_.slot(i), row);
    return row_total(ptx::thread_load_handed_4(place), ptx::thread_load_handed_4(place + 1));
  }

  // Combines a chunk over every `step`th split, with the loads of kAtOnce splits in flight at a
  // time.
  template <int kAtOnce>
  FLASHSMITH_DEVICE RowSums merged(int row, int chunk, int first, int step) const {
    const auto load = [&](int i) {
      const float *place = elements(split_.slot(i), row, chunk * kSumChunk);
      const ptx::Chunk half[2] = {ptx::load_handed_16(place),
                                  ptx::load_handed_16(place + kSumChunk / 2)};
      return row_sums(half, handed_total(i, row));
    };
    return merge_parts<kAtOnce>(first, split_.count, step, load);
  }

  // Writes a chunk of a row of O, and with the first chunk the row's LSE. `V_scale` is the factor
  // of the values.
  FLASHSMITH_DEVICE void store(const RowSums &sums, int row, int chunk, float V_scale = 1.f) const {
    using value_t = typename Traits::value_t;
    if (row >= rows_.count()) return;
    const int head = rows_.head(row);
    const RowTotal total = with_sink<Traits>(sums.total, problem_, head);
    const float factor = total.sum == 0.f ? 0.f : total.kept / total.sum * V_scale;
    if (!Traits::padded || chunk * kSumChunk < problem_.d_v) {
      ptx::Chunk words;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        words.word[i] = ptx::pack<value_t>(sums.O[2 * i] * factor, sums.O[2 * i + 1] * factor);
      }
      ptx::thread_store_global_16(static_cast<value_t *>(problem_.O) +
                                      rows_.offset(problem_.O_strides, split_.batch, row) +
                                      chunk * kSumChunk,
                                  words);
    }
    if (chunk == 0) store_log_sum_exp(total, row);
  }
  FLASHSMITH_DEVICE void store_log_sum_exp(const RowTotal &total, int row) const {
    if (problem_.lse == nullptr) return;
    const int64_t place = static_cast<int64_t>(split_.batch) * problem_.n_heads + rows_.head(row);
    ptx::thread_store_global_4(problem_.lse + place * problem_.seq_len_q + rows_.query(row),
                               ptx::float_bits(total.log_sum_exp()));
  }
};

}  // namespace flashsmith
