// The statistics of each query that the backward needs beside its rows: the LSE and delta, the sum
// of do o (FlashAttention-2, section 3.1, algorithm 2, line 4) minus the gradient of the LSE.
//
// They are stored in blocks of kStatisticsRows queries of a head: the LSEs, in base 2, then the
// deltas. A query that does not exist, or sees no key, has LSE +inf, so that its weights become 0;
// so has a query whose LSE is too large to determine the weights. In a block every 16 rows are
// permuted, so that a lane of a transposed fragment finds its four columns of two neighbouring
// groups of eight side by side.
#pragma once

#include <cmath>

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/attention/key_tile_table.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/attention/softmax.cuh"
#include "flashsmith/attention/unused_rows.cuh"
#include "flashsmith/backward_params.h"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/ptx/global_exchange.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith {

constexpr int kStatisticsFloats = 2 * kStatisticsRows;  // of a block
constexpr int kStatisticsBytes = kStatisticsFloats * static_cast<int>(sizeof(float));
constexpr int kStatisticsThreads = 128;

// dQ is not accumulated in memory, or by blocks of keys in any order, or in the order of the keys.
enum class DQAccumulation { registers, atomic, ordered };

// Returns the index of a row's value in its block.
FLASHSMITH_HOST_DEVICE constexpr int statistics_place(int row) {
  return row / 16 * 16 + row % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2;
}

// Returns the index of a sequence's first block. Packed sequences begin at any row of one batch
// entry, so each gets one block more than its rows need, and no two share a block.
template <SequencePolicy Sequence>
FLASHSMITH_DEVICE int first_statistics_block(const GradientArgs &args, const Sequence &sequence,
                                             int batch) {
  if (args.packed_q) return sequence.queries().row / kStatisticsRows + batch;
  return batch * args.n_statistics_blocks;
}

// Returns the statistics of a block of a head.
FLASHSMITH_DEVICE float *statistics_of(const GradientArgs &args, int block, int head) {
  const int64_t place = static_cast<int64_t>(head) * args.all_statistics_blocks + block;
  return args.statistics + place * kStatisticsFloats;
}

// Returns an LSE or a delta in a launch after the one that wrote it. Launches may overlap
// (ptx/dependent_launch.cuh), so L1 may have an older value.
FLASHSMITH_DEVICE float load_statistic(const float *place) {
  return ptx::bits_float(ptx::thread_load_global_cg_4(place));
}

// Returns the dQ accumulator of a block of a head.
template <int kDHead>
FLASHSMITH_DEVICE float *sums_of(const GradientArgs &args, int block, int head) {
  const int64_t place = static_cast<int64_t>(head) * args.all_statistics_blocks + block;
  return args.sums + place * kStatisticsRows * kDHead;
}

// Returns the first head, counted over all batch entries by their rank, whose dQ accumulator the
// main kernel clears.
FLASHSMITH_DEVICE int first_cleared_later(const ProblemArgs &problem, const GradientArgs &args) {
  return problem.n_heads * problem.batch - args.n_cleared_later;
}

// Returns the counters of a block of a head, one for each part of its dQ accumulator.
template <int kParts>
FLASHSMITH_DEVICE uint32_t *summed_of(const GradientArgs &args, int block, int head) {
  const int64_t place = static_cast<int64_t>(head) * args.all_statistics_blocks + block;
  return args.summed + place * kParts;
}

// Returns the dot product of two chunks of eight elements.
template <typename value_t>
FLASHSMITH_DEVICE float dot(const ptx::Chunk &a, const ptx::Chunk &b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const auto low = [](uint32_t word) { return static_cast<uint16_t>(word); };
    const auto high = [](uint32_t word) { return static_cast<uint16_t>(word >> 16); };
    sum = fmaf(ptx::unpack<value_t>(low(a.word[i])), ptx::unpack<value_t>(low(b.word[i])), sum);
    sum = fmaf(ptx::unpack<value_t>(high(a.word[i])), ptx::unpack<value_t>(high(b.word[i])), sum);
  }
  return sum;
}

// Computes the sums of do o of the rows of one block: eight lanes share a row. The loads of several
// rows and of their LSE are in flight together, because nothing else hides their latency.
template <typename Traits>
class StatisticsBlock {
  using value_t = typename Traits::value_t;
  static constexpr int kLanes = 8, kChunkElements = 8;
  static constexpr int kRowsAtOnce = kStatisticsThreads / kLanes;
  static constexpr int kPasses = kStatisticsRows / kRowsAtOnce;
  static constexpr int kChunks = (Traits::d_head + kLanes * kChunkElements - 1) / 64;  // per lane

  const ProblemArgs &problem_;
  const GradientArgs &args_;
  const int row_, head_, batch_;  // of the block's first row
  const typename Traits::Sequence sequence_;

 public:
  FLASHSMITH_DEVICE StatisticsBlock(const ProblemArgs &problem, const GradientArgs &args)
      : problem_(problem),
        args_(args),
        row_(ptx::block_index_x() * kStatisticsRows),
        head_(ptx::block_index_y()),
        batch_(ptx::block_index_z()),
        sequence_(problem, batch_) {}

  FLASHSMITH_DEVICE void run() const {
    if (row_ >= sequence_.seq_len_q()) return;
    const int block = first_statistics_block(args_, sequence_, batch_) + ptx::block_index_x();
    constexpr int kTogether = kChunks <= 2 ? kPasses : kPasses / 2;  // bounded by registers
    float *out = statistics_of(args_, block, head_);
#pragma unroll
    for (int first = 0; first < kPasses; first += kTogether) {
      Rows<kTogether> rows;
      load_rows(rows, first);
      if (first == 0) start_sums(block);  // while the rows are on their way
      store_rows(rows, first, out);
    }
  }

 private:
  // A lane's chunks of the rows of some passes. The first lane of a row has its LSE, and the
  // gradient of that.
  template <int kCount>
  struct Rows {
    ptx::Chunk o[kCount][kChunks], dO[kCount][kChunks];
    float lse[kCount], dlse[kCount];
  };

  template <int kCount>
  FLASHSMITH_DEVICE void load_rows(Rows<kCount> &rows, int first) const {
    const int lane = ptx::thread_index() % kLanes, own = ptx::thread_index() / kLanes;
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const int row = row_ + (first + i) * kRowsAtOnce + own;
      load(rows.o[i], row_of(problem_.O, problem_.O_strides, row), row, lane);
      load(rows.dO[i], row_of(args_.dO, args_.dO_strides, row), row, lane);
    }
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const int row = row_ + (first + i) * kRowsAtOnce + own;
      rows.lse[i] = rows.dlse[i] = 0;
      if (lane == 0 && row < sequence_.seq_len_q()) load_lse(rows.lse[i], rows.dlse[i], row);
    }
  }

  FLASHSMITH_DEVICE void load_lse(float &lse, float &dlse, int row) const {
    const RowOffset first = sequence_.queries();
    const int64_t index =
        (static_cast<int64_t>(first.batch) * problem_.n_heads + head_) * sequence_.rows_q() +
        first.row + row;
    lse = ptx::thread_load_global(problem_.lse + index);
    if (args_.dlse != nullptr) dlse = ptx::thread_load_global(args_.dlse + index);
  }

  template <int kCount>
  FLASHSMITH_DEVICE void store_rows(const Rows<kCount> &rows, int first, float *out) const {
    const int lane = ptx::thread_index() % kLanes, own = ptx::thread_index() / kLanes;
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      float sum = 0;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk++) {
        sum += dot<value_t>(rows.o[i][chunk], rows.dO[i][chunk]);
      }
      sum += ptx::shuffle_xor<1>(sum);
      sum += ptx::shuffle_xor<2>(sum);
      sum += ptx::shuffle_xor<4>(sum);
      const int row = (first + i) * kRowsAtOnce + own;
      const bool exists = row_ + row < sequence_.seq_len_q();
      const float lse = exists && tells_weights(rows.lse[i]) ? rows.lse[i] * kLog2e : INFINITY;
      if (lane == 0) store(out + statistics_place(row), lse, exists ? sum - rows.dlse[i] : 0.f);
    }
  }

  FLASHSMITH_DEVICE void load(ptx::Chunk (&chunks)[kChunks], const value_t *elements, int row,
                              int lane) const {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk++) {
      const int element = (chunk * kLanes + lane) * kChunkElements;
      chunks[chunk] = ptx::load_global_16_or_zero(
          elements + element, row < sequence_.seq_len_q() && element < problem_.d_v);
    }
  }

  FLASHSMITH_DEVICE const value_t *row_of(const void *tensor, const TensorStrides &strides,
                                          int row) const {
    const RowOffset place = sequence_.queries();
    return static_cast<const value_t *>(tensor) + place.batch * strides.batch +
           head_ * strides.head + (place.row + row) * strides.seq;
  }

  static FLASHSMITH_DEVICE void store(float *place, float lse, float delta) {
    ptx::thread_store_global_4(place, ptx::float_bits(lse));
    ptx::thread_store_global_4(place + kStatisticsRows, ptx::float_bits(delta));
  }

  // Returns whether the weights exp(score - lse) can be computed. They are as exact as the rounding
  // of the LSE: within an eighth at 2^20, meaningless at 2^25. Only changes of scores make LSEs
  // that large. NaN stays NaN.
  static FLASHSMITH_DEVICE bool tells_weights(float lse) {
    constexpr float kMax = 0x1p20f;
    if constexpr (Traits::Score::kChanges || Traits::has_sinks) return !(fabsf(lse) > kMax);
    return lse != -INFINITY;
  }

  // Prepares the accumulation of dQ, as far as the main kernel does not. If blocks of keys add in
  // order, the first one stores, so that only the counters are cleared, and dQ itself where no
  // block of keys adds.
  FLASHSMITH_DEVICE void start_sums(int block) const {
    if constexpr (Traits::dQ_accumulation == DQAccumulation::atomic) {
      if (is_cleared_later()) return;
      clear(sums_of<Traits::d_head>(args_, block, head_));
    } else if constexpr (Traits::dQ_accumulation == DQAccumulation::ordered) {
      uint32_t *summed = summed_of<Traits::dQ_parts>(args_, block, head_);
      const int part = ptx::thread_index();
      if (part < Traits::dQ_parts) ptx::thread_store_global_4(summed + part, 0);
      if (!sees_keys()) clear_dQ();
    }
  }

  FLASHSMITH_DEVICE bool is_cleared_later() const {
    if constexpr (Traits::Sequence::kVarlen) {
      if (args_.n_cleared_later == 0) return false;
    }
    const int head = rank_of<Traits>(problem_, batch_) * problem_.n_heads + head_;
    return head >= first_cleared_later(problem_, args_);
  }

  // Returns whether any block of keys adds to dQ of these queries.
  FLASHSMITH_DEVICE bool sees_keys() const {
    using Mask = typename Traits::Mask;
    const int last_row = row_ + kStatisticsRows - 1;
    return Mask::first(problem_, sequence_, row_) <=
           Mask::last(problem_, sequence_, last_row, sequence_.seq_len_k() - 1);
  }

  FLASHSMITH_DEVICE void clear_dQ() const {
    const RowOffset place = sequence_.queries();
    const TensorStrides &strides = args_.dQ_strides;
    const int n_rows = sequence_.seq_len_q() - row_;
    auto *first = static_cast<value_t *>(args_.dQ) + place.batch * strides.batch +
                  head_ * strides.head + (place.row + row_) * strides.seq;
    const int lane = ptx::thread_index() % kLanes;
    for (int row = ptx::thread_index() / kLanes; row < kStatisticsRows && row < n_rows;
         row += kRowsAtOnce) {
      for (int element = lane * kChunkElements; element < problem_.d_qk;
           element += kLanes * kChunkElements) {
        ptx::thread_store_global_16(first + row * strides.seq + element, ptx::Chunk{});
      }
    }
  }

  static FLASHSMITH_DEVICE void clear(float *sums) {
    for (int i = ptx::thread_index() * 4; i < kStatisticsRows * Traits::d_head;
         i += kStatisticsThreads * 4) {
      ptx::store_global_16(sums + i, ptx::Chunk{});
    }
  }
};

// Resets the queue, and the counters behind it, for the kernels that follow.
FLASHSMITH_DEVICE void clear_queue(const GradientArgs &args) {
  const int place = ptx::block_index_x() + ptx::block_index_y() + ptx::block_index_z();
  if (args.queue == nullptr || place != 0) return;
  const int thread = ptx::thread_index();
  if (thread == 0) ptx::thread_store_global_4(args.queue, 0);
  for (int i = thread; i < args.n_counters; i += kStatisticsThreads) {
    ptx::thread_store_global_4(args.finished + i, 0);
  }
}

// Clears the sums to which the parts of groups add dK and dV, if there are any. The blocks of the
// grid share them.
template <typename Traits, typename Args>
FLASHSMITH_DEVICE void clear_key_sums(const Args &args) {
  constexpr int kFloatsOfStore = 4, kFloatsOfBlock = kStatisticsThreads * kFloatsOfStore;
  const int64_t n_floats = static_cast<int64_t>(args.parts.all_key_blocks) *
                           args.problem.n_heads_kv * Traits::key_sums_floats;
  const int64_t row = ptx::block_index_z() * args.problem.n_heads + ptx::block_index_y();
  const int64_t n_rows = static_cast<int64_t>(args.problem.batch) * args.problem.n_heads;
  const int64_t first = (row * ptx::grid_size_x() + ptx::block_index_x()) * kFloatsOfBlock;
  for (int64_t i = first + ptx::thread_index() * kFloatsOfStore; i < n_floats;
       i += n_rows * ptx::grid_size_x() * kFloatsOfBlock) {
    ptx::store_global_16(args.parts.sums + i, ptx::Chunk{});
  }
}

// Grid: (blocks of kStatisticsRows of the longest sequence, n_heads, batch). Block:
// kStatisticsThreads.
template <typename Traits, typename Args>
__global__ void __launch_bounds__(kStatisticsThreads)
    row_statistics_kernel(const __grid_constant__ Args args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  clear_queue(args.gradient);
  if constexpr (Traits::Sequence::kVarlen) {
    if (args.gradient.clears_unused) {
      clear_unused_rows<Traits, kStatisticsThreads>(args.problem, args.gradient);
    }
  }
  StatisticsBlock<Traits>(args.problem, args.gradient).run();
  if constexpr (Traits::adds_parts) clear_key_sums<Traits>(args);
}

// Computes the gradient of a head's sink, a logit without a value: -sum of its weights times delta.
// The order of the sum is fixed. Grid: n_heads. Block: kWarpSize.
template <typename Traits, typename Args>
__global__ void __launch_bounds__(kWarpSize)
    sink_gradient_kernel(const __grid_constant__ Args args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  const ProblemArgs &problem = args.problem;
  const GradientArgs &gradient = args.gradient;
  const int head = ptx::block_index_x(), lane = ptx::thread_index();
  const float sink = ptx::thread_load_global(problem.score.sinks + head) * kLog2e;
  float sum = 0;
  for (int batch = 0; batch < problem.batch; batch++) {
    const typename Traits::Sequence sequence(problem, batch);
    const int first = first_statistics_block(gradient, sequence, batch);
    const int rows =
        (sequence.seq_len_q() + kStatisticsRows - 1) / kStatisticsRows * kStatisticsRows;
    for (int row = lane; row < rows; row += kWarpSize) {
      const float *block = statistics_of(gradient, first + row / kStatisticsRows, head);
      const float lse = load_statistic(block + row % kStatisticsRows);
      const float delta = load_statistic(block + kStatisticsRows + row % kStatisticsRows);
      if (lse != INFINITY) sum = fmaf(ptx::exp2_approx(sink - lse), delta, sum);
    }
  }
  sum += ptx::shuffle_xor<1>(sum);
  sum += ptx::shuffle_xor<2>(sum);
  sum += ptx::shuffle_xor<4>(sum);
  sum += ptx::shuffle_xor<8>(sum);
  sum += ptx::shuffle_xor<16>(sum);
  if (lane == 0) ptx::thread_store_global_4(gradient.dsinks + head, ptx::float_bits(-sum));
}

}  // namespace flashsmith
