// Stores a warpgroup's sums: as rows of O or, if the work tile is split, as a partial result.
//
// If a work tile has two equal splits, the last one to arrive combines them, each warpgroup its
// rows, in the order of the keys. It would wait long for more splits, so these wait for each other
// and combine a share each (attention/split_arrivals.cuh), as those of stream-K do, or a separate
// kernel combines them (attention/combine_kernel.cuh).
#pragma once

#include "flashsmith/attention/partial_results.cuh"
#include "flashsmith/attention/split_arrivals.cuh"
#include "flashsmith/sm90/decode_traits.cuh"
#include "flashsmith/sm90/gemm.cuh"
#include "flashsmith/sm90/named_barrier.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
class DecodeOutput {
  using Accumulator = OAccumulator<Traits>;
  using Stats = SoftmaxStats[kHalves];
  // The number of columns for which partial results are combined at a time, as registers allow.
  static constexpr int kPassColumns = Traits::d_head <= 128 ? Traits::d_head : 64;
  static_assert(kPassColumns % (kLanesPerRow * kPartialChunk) == 0, "a pass stores whole chunks");

  const DecodeProblem &problem_;
  const KeySplit &split_;
  const PartialResults<Traits> sums_;
  const int warpgroup_;

 public:
  FLASHSMITH_DEVICE DecodeOutput(const DecodeProblem &problem, const KeySplit &split, int warpgroup)
      : problem_(problem), split_(split), sums_(problem, split), warpgroup_(warpgroup) {}

  FLASHSMITH_DEVICE void write(const Accumulator &O, const Stats &stats) const {
    if (split_.count == 1) {
      store_rows(O, stats);
      return;
    }
    store_partial(O, stats);
    if (problem_.split.split_tiles == nullptr && is_last()) combine_splits();
  }

  FLASHSMITH_DEVICE void store_rows(const Accumulator &O, const Stats &stats) const {
    float factor[kHalves];
    finish_rows(factor, stats);
    store(O, factor, 0);
  }

  // Stores the partial result of this split. The four lanes of a row have eight contiguous numbers.
  FLASHSMITH_DEVICE void store_partial(const Accumulator &O, const Stats &stats) const {
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const int row = lane_row(half);
      if (row >= rows().count()) continue;
      float *place = sums_.elements(split_.slot(split_.index), row, first_column(lane()));
#pragma unroll
      for (int i = 0; i < Traits::d_head / 8; i++) {
        const int element = 4 * i + 2 * half;
        ptx::thread_store_global_8(place + 8 * i, ptx::float_bits(O[element]),
                                   ptx::float_bits(O[element + 1]));
      }
      if (lane() % kLanesPerRow == 0) sums_.store_partial_stats(stats[half], row);
    }
  }

  // Tells the other splits of the work tile that this one's partial result is stored. `which`: the
  // first or the second of the block's splits that wait.
  FLASHSMITH_DEVICE void arrive(int which) const {
    ptx::named_barrier_sync(own_barrier(), kWarpgroupSize);  // order in global memory
    if (thread() == 0) ptx::thread_store_shared_4(told(which), arrivals().arrive());
  }

  // Waits for the other splits, and combines a share of the warpgroup's rows.
  FLASHSMITH_DEVICE void combine_share(int which) const {
    SplitArrivals own_arrivals = arrivals();
    if (thread() == 0) {
      const Combines own = own_arrivals.wait(ptx::thread_load_shared_4(told(which)));
      ptx::thread_store_shared_4(told(which), static_cast<uint32_t>(own));
    }
    ptx::named_barrier_sync(own_barrier(), kWarpgroupSize);
    const auto own = static_cast<Combines>(ptx::load_shared_4(told(which)));
    const uint32_t before = thread() == 0 ? own_arrivals.leave() : 0;
    combine_chunks(own);
    if (thread() == 0) own_arrivals.clear_after_all(before);
  }

 private:
  FLASHSMITH_DEVICE const DecodeRows<Traits> &rows() const { return sums_.rows(); }
  static FLASHSMITH_DEVICE int thread() { return ptx::thread_index() % kWarpgroupSize; }
  static FLASHSMITH_DEVICE int lane() { return ptx::thread_index() % kWarpSize; }
  // Returns a row of the lane, in the work tile.
  FLASHSMITH_DEVICE int lane_row(int half) const {
    return warpgroup_ * kWgmmaM + thread() / kWarpSize * kWarpRows + first_row(lane()) +
           half * kRowsPerHalf;
  }

  // ---- partial results ----

  FLASHSMITH_DEVICE int own_barrier() const {
    return ptx::named_barrier_of(NamedBarrier::own_warps, warpgroup_);
  }
  // The counter of the work tile's splits, and the word by which one thread tells the others.
  FLASHSMITH_DEVICE uint32_t *counter() const {
    return problem_.split.arrivals + split_.tile * Traits::n_warpgroups + warpgroup_;
  }
  FLASHSMITH_DEVICE ptx::shared_address told(int which = 0) const {
    const int word = warpgroup_ * Traits::arrived_words + which;
    return ptx::shared_memory() + Traits::arrived_offset + word * sizeof(uint32_t);
  }
  FLASHSMITH_DEVICE SplitArrivals arrivals() const {
    return {counter(), split_.count, problem_.split.polls};
  }

  FLASHSMITH_DEVICE void combine_chunks(Combines own) const {
    constexpr int kRowChunks = Traits::d_head / kPartialChunk;
    if (own == Combines::nothing) return;
    const int first_row = warpgroup_ * kWgmmaM, rows_left = rows().count() - first_row;
    // Whole warps take part; some of their lanes may be beyond the last row.
    const int all = (rows_left < kWgmmaM ? rows_left : kWgmmaM) * kRowChunks;
    const int each = (all + split_.count * kWarpSize - 1) / (split_.count * kWarpSize) * kWarpSize;
    const bool has_share = own == Combines::own_share;
    const int begin = has_share ? split_.index * each : 0;
    const int end = has_share && begin + each < all ? begin + each : all;
    constexpr int kMaxGroups = kMaxWaitingSplits / kSplitsOfThread;
    const int groups = problem_.split.combine_groups;
    const ThreadGroups threads{groups, Traits::combining_threads / groups, thread(),
                               ThreadPartials(own_Q())};
    const auto meet = [&] { ptx::named_barrier_sync(own_barrier(), kWarpgroupSize); };
#pragma unroll 1
    for (int at = begin; at < end; at += threads.of_group) {
      const int i = at + threads.place();
      const int row = first_row + i / kRowChunks, chunk = i % kRowChunks;
      const bool here = threads.group() < groups && i / kWarpSize * kWarpSize < end;
      const PartialResult sums =
          sums_.template combined_by<kMaxGroups>(threads, row, chunk, here, meet);
      if (here && threads.group() == 0) sums_.store(sums, row, chunk);
      if (groups > 1) meet();
    }
  }
  // The warpgroup's rows of Q in shared memory, of the first box.
  FLASHSMITH_DEVICE ptx::shared_address own_Q() const {
    return ptx::shared_memory() + Traits::Q_offset +
           warpgroup_ * kWgmmaM * Traits::Q_tile.row_bytes;
  }

  // Returns whether all other splits of the work tile have stored these rows, too.
  FLASHSMITH_DEVICE bool is_last() const {
    // All partial results come before the arrival.
    ptx::named_barrier_sync(own_barrier(), kWarpgroupSize);  // order in global memory
    if (thread() == 0) {
      ptx::thread_store_shared_4(told(), arrive_last(counter(), split_.count));
    }
    ptx::named_barrier_sync(own_barrier(), kWarpgroupSize);
    return ptx::load_shared_4(told()) != 0;
  }

  FLASHSMITH_DEVICE void combine_splits() const {
    Stats all = {{.reference = -INFINITY, .sum = 0.f, .kept = 1.f},
                 {.reference = -INFINITY, .sum = 0.f, .kept = 1.f}};
#pragma unroll 4
    for (int i = 0; i < split_.count; i++) {
#pragma unroll
      for (int half = 0; half < kHalves; half++) {
        const float own = sums_.load_partial_stats(i, lane_row(half)).reference;
        all[half].reference = fmaxf(all[half].reference, own);
      }
    }
#pragma unroll 1
    for (int column = 0; column < Traits::d_head; column += kPassColumns) {
      Fragment<kPassColumns> O = {};
      all[0].sum = all[1].sum = 0.f;
#pragma unroll 1
      for (int i = 0; i < split_.count; i++) add_split(O, all, i, column);
      float factor[kHalves];
      finish_rows(factor, all);
      store(O, factor, column);
    }
  }

  // Adds a split's partial result of the columns from `column` on. Rows that do not exist hold
  // anything.
  FLASHSMITH_DEVICE void add_split(Fragment<kPassColumns> &O, Stats &all, int i, int column) const {
    Fragment<kPassColumns> parts;
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const float *place =
          sums_.elements(split_.slot(i), lane_row(half), column + first_column(lane()));
#pragma unroll
      for (int k = 0; k < kPassColumns / 8; k++) {
        const int element = 4 * k + 2 * half;
        ptx::load_global_cg_8(parts[element], parts[element + 1], place + 8 * k);
      }
    }
    float weight[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const SoftmaxStats own = sums_.load_partial_stats(i, lane_row(half));
      weight[half] = rescaled(own, all[half].reference);
      all[half].sum = fmaf(own.sum, weight[half], all[half].sum);
    }
#pragma unroll
    for (int k = 0; k < kPassColumns / 2; k++) O[k] = fmaf(parts[k], weight[half_of(k)], O[k]);
  }

  // ---- rows of O ----

  // Sets the factors of the lane's rows, and writes their LSEs.
  FLASHSMITH_DEVICE void finish_rows(float (&factor)[kHalves], const Stats &stats) const {
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const int row = lane_row(half);
      const SoftmaxStats row_stats = with_sink<Traits>(stats[half], problem_, rows().head(row));
      factor[half] = row_stats.sum == 0.f ? 0.f : row_stats.kept / row_stats.sum;
      if (row < rows().count() && lane() % kLanesPerRow == 0)
        sums_.store_log_sum_exp(row_stats, row);
    }
  }

  // Stores the columns from `first` on, 16 bytes a lane: the four lanes of a row exchange words
  // until each has a whole chunk.
  template <int kElements>
  FLASHSMITH_DEVICE void store(const float (&O)[kElements], const float (&factor)[kHalves],
                               int first) const {
    using value_t = typename Traits::value_t;
    const int lane_column = first + lane() % kLanesPerRow * kPartialChunk;
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const int row = lane_row(half);
      value_t *out = static_cast<value_t *>(problem_.O) +
                     rows().offset(problem_.O_strides, split_.batch, row) + lane_column;
#pragma unroll
      for (int column = 0; column < 2 * kElements; column += kLanesPerRow * kPartialChunk) {
        ptx::Chunk chunk;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int element = column / 2 + 4 * i + 2 * half;
          chunk.word[i] =
              ptx::pack<value_t>(O[element] * factor[half], O[element + 1] * factor[half]);
        }
        transpose_quad(chunk.word);
        const bool has_column = !Traits::padded || lane_column + column < problem_.d_v;
        if (row < rows().count() && has_column) ptx::thread_store_global_16(out + column, chunk);
      }
    }
  }
};

}  // namespace flashsmith::sm90
