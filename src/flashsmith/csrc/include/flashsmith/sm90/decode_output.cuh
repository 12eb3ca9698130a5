// Stores a warpgroup's sums: as rows of O or, if the work tile is split, as a partial result.
//
// If a work tile has two splits, the last one to arrive combines them, each warpgroup its rows, in
// the order of the keys. It would wait long for more splits, so these wait for each other and
// combine a share each (attention/split_arrivals.cuh), or a separate kernel combines them
// (attention/combine_kernel.cuh).
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

  // Where splits wait for each other, `combine_share` has to follow.
  FLASHSMITH_DEVICE void write(const Accumulator &O, const Softmax<Traits> &softmax) const {
    const SplitArgs &args = problem_.split;
    const Stats stats = {softmax.stats(0), softmax.stats(1)};
    if (split_.count == 1) {
      float factor[kHalves];
      finish_rows(factor, stats);
      store(O, factor, 0);
      return;
    }
    store_partial(O, stats);
    const bool waits = Traits::may_wait && args.polls > 0;
    if (args.split_tiles == nullptr && !waits && is_last()) combine_splits();
  }

  // Waits for the other splits of the work tile, and combines a share of the warpgroup's rows.
  FLASHSMITH_DEVICE void combine_share() const {
    if (split_.count <= 1) return;  // nor has an idle block any
    const SplitArgs &args = problem_.split;
    SplitArrivals arrivals(counter(), split_.count, args.polls);
    // All partial results come before the arrival.
    ptx::named_barrier_sync(own_barrier(), kWarpgroupSize);  // order in global memory
    if (thread() == 0) {
      ptx::thread_store_shared_4(told(), static_cast<uint32_t>(arrivals.arrive()));
    }
    ptx::named_barrier_sync(own_barrier(), kWarpgroupSize);
    const auto own = static_cast<Combines>(ptx::load_shared_4(told()));
    const uint32_t before = thread() == 0 ? arrivals.leave() : 0;
    combine_chunks(own);
    if (thread() == 0) arrivals.clear_after_all(before);
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

  FLASHSMITH_DEVICE int own_barrier() const {
    return ptx::named_barrier_of(NamedBarrier::own_warps, warpgroup_);
  }
  // The counter of the work tile's splits, and the word by which one thread tells the others.
  FLASHSMITH_DEVICE uint32_t *counter() const {
    return problem_.split.arrivals + split_.tile * Traits::n_warpgroups + warpgroup_;
  }
  FLASHSMITH_DEVICE ptx::shared_address told() const {
    return ptx::shared_memory() + Traits::arrived_offset + warpgroup_ * sizeof(uint32_t);
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
#pragma unroll 1
    for (int i = begin + thread(); i / kWarpSize * kWarpSize < end; i += kWarpgroupSize) {
      const int row = first_row + i / kRowChunks, chunk = i % kRowChunks;
      sums_.store(sums_.template combined<kMaxWaitingSplits>(row, chunk, 0, 1), row, chunk);
    }
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
