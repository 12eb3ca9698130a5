// The warp of the backward that converts dQ of heads whose blocks of keys have all added to it, in
// any order, while the thread block works on later heads. Their sums are in L2 still. The heads
// that are worked on last are left to dQ_conversion_kernel, whose warps are more. Before it waits
// for a head, the warp clears sums of later ones.
//
// A thread block converts a fixed share of the blocks of queries. It waits for tiles that other
// thread blocks work on, none of which waits for a conversion; all tiles are drawn, so that those
// which run finish every tile.
#pragma once

#include "flashsmith/attention/dQ_sums.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/reduction.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/ptx/uniform.cuh"
#include "flashsmith/sm90/backward_adder.cuh"
#include "flashsmith/sm90/backward_clearer.cuh"

namespace flashsmith::sm90 {

template <typename Traits>
class EarlyConverter {
  using value_t = typename Traits::value_t;
  static constexpr int kBuffers = Traits::kConvertedBuffers;
  static constexpr int kBytes = kConvertedFloats * static_cast<int>(sizeof(float));
  static_assert(Traits::d_head >= kBuffers * kConvertedColumns,
                "the first columns of a block fill the buffers");
  static constexpr int kFragments = kStatisticsRows / kFragmentRows;
  static constexpr int kChunkColumns = 8, kPlaceBytes = 16, kRowBytes = kLanesPerRow * kPlaceBytes;
  static constexpr int kChunkBytes = kSumsThreads * kPlaceBytes;
  static_assert(Traits::converted_offset % kRowBytes == 0, "places differ in two bits");
  static_assert(kConvertedColumns == kLanesPerRow * kChunkColumns,
                "the lanes of a row have a chunk each");

  const Sm90BackwardKernelArgs &args_;
  RingPosition<kBuffers> position_;
  SumsClearer<Traits> clearer_;

 public:
  FLASHSMITH_DEVICE explicit EarlyConverter(const Sm90BackwardKernelArgs &args)
      : args_(args), clearer_(args) {}

  // The blocks of all early heads have numbers, of which a thread block takes every
  // grid_size_x()-th.
  FLASHSMITH_DEVICE void run() {
    if (args_.gradient.n_early == 0) return;
    clearer_.begin();
    int number = ptx::block_index_x(), rank = 0;
    for (int heads = args_.gradient.n_early; heads > 0; heads -= args_.problem.n_heads) {
      const int of_rank = heads < args_.problem.n_heads ? heads : args_.problem.n_heads;
      number = convert_sequence(rank++, of_rank, number);
    }
    clearer_.clear_all();
  }

 private:
  // Converts the blocks of the first `n_heads` heads of the sequence of a rank. Returns the thread
  // block's next number, counted from the next sequence on.
  FLASHSMITH_DEVICE int convert_sequence(int rank, int n_heads, int number) {
    const int batch = batch_at<Traits>(args_.problem, rank);
    const typename Traits::Sequence sequence(args_.problem, batch);
    const int per_head = (sequence.seq_len_q() + kStatisticsRows - 1) / kStatisticsRows;
    const int all = n_heads * per_head;
#pragma unroll 1
    for (; number < all; number += ptx::grid_size_x()) {
      const int head = ptx::uniform(number / per_head);
      clearer_.clear_ahead_of(rank * args_.problem.n_heads + head);
      wait_for(sequence, rank, head);
      convert(sequence, batch, head, number - head * per_head);
    }
    return number - all;
  }

  // Waits until all tiles that add to a head are finished. A tile without queries adds to no head,
  // and does not wait until the sums are cleared.
  FLASHSMITH_DEVICE void wait_for(const typename Traits::Sequence &sequence, int rank,
                                  int head) const {
    if (ptx::lane_index() != 0) return;
    const int group = args_.problem.n_heads / args_.problem.n_heads_kv, head_kv = head / group;
    int part = 0;
    if constexpr (Traits::splits_groups) {
      part = (head - head_kv * group) / args_.parts.heads_per_part;
    }
    const int n_tiles = tiles_of_sequence<Traits>(args_.problem, sequence, rank);
    wait_until_cleared<Traits>(args_, sequence, rank, head);
    ptx::wait_global(finished_of<Traits>(args_, rank, head_kv, part), n_tiles * Traits::dQ_adders);
    ptx::fence_proxy_async_global();
  }

  static FLASHSMITH_DEVICE ptx::shared_address place(int buffer) {
    return ptx::shared_memory() + Traits::converted_offset + buffer * kBytes;
  }

  // Converts a block of queries, some columns at a time.
  FLASHSMITH_DEVICE void convert(const typename Traits::Sequence &sequence, int batch, int head,
                                 int block) {
    const GradientArgs &gradient = args_.gradient;
    const float *sums = sums_of<Traits::d_head>(
        gradient, first_statistics_block(gradient, sequence, batch) + block, head);
#pragma unroll
    for (int i = 0; i < kBuffers; i++) {
      load((position_.buffer + i) % kBuffers, sums + i * kConvertedFloats);
    }
    const auto rows = dQ_rows<Traits>(args_, sequence, head, block * kStatisticsRows);
    // A bound that the compiler does not know keeps it from unrolling, which takes registers.
#pragma unroll 1
    for (int column = 0; column < ptx::recomputed(Traits::d_head); column += kConvertedColumns) {
      ptx::mbarrier_wait_parity(BackwardBarriers<Traits>::converted(position_.buffer),
                                position_.parity);
      store_loaded(rows, column);
      ptx::fence_proxy_async();
      ptx::warp_sync();
      const int next = column + kBuffers * kConvertedColumns;
      if (next < Traits::d_head) load(position_.buffer, sums + next * kStatisticsRows);
      position_.advance();
    }
  }

  // Loads the sums of kConvertedColumns columns, which lie together, into a buffer.
  static FLASHSMITH_DEVICE void load(int buffer, const float *sums) {
    if (ptx::lane_index() != 0) return;
    const ptx::shared_address barrier = BackwardBarriers<Traits>::converted(buffer);
    ptx::mbarrier_arrive_expect_tx(barrier, kBytes);
    ptx::bulk_load(place(buffer), sums, kBytes, barrier);
  }

  // Writes the loaded columns of a block. A lane writes a chunk of eight columns of two rows of
  // each fragment. The chunk lies in four places, with two columns each of both rows, and the lanes
  // of a row read these in different orders, so that they use different banks.
  FLASHSMITH_DEVICE void store_loaded(const GradientRows<value_t> &rows, int column) const {
    const int lane = ptx::lane_index(), own = lane % kLanesPerRow;
    column += own * kChunkColumns;
    const int n_rows = Traits::padded && column >= rows.n_columns ? 0 : rows.n_rows;
    ptx::shared_address sums =
        place(position_.buffer) + own * (kChunkBytes + kPlaceBytes) + first_row(lane) * kRowBytes;
    int row = first_row(lane);
#pragma unroll 1
    for (int fragment = 0; fragment < kFragments; fragment++) {
      uint32_t upper[kLanesPerRow], lower[kLanesPerRow];
#pragma unroll
      for (int i = 0; i < kLanesPerRow; i++) pack(upper[i], lower[i], sums ^ i * kPlaceBytes);
      unscramble(upper, own);
      unscramble(lower, own);
      if (row < n_rows) store(rows.first + column, row, upper);
      if (row + kRowsPerHalf < n_rows) store(rows.first + column, row + kRowsPerHalf, lower);
      row += kFragmentRows;
      sums += kWarpSize * kPlaceBytes;
    }
  }

  // Rounds the four sums of a place, two of a row of each half.
  FLASHSMITH_DEVICE void pack(uint32_t &upper, uint32_t &lower, ptx::shared_address sums) const {
    ptx::Chunk chunk;
    ptx::load_shared_16(chunk, sums);
    const auto scaled = [&](int word) {
      return ptx::bits_float(chunk.word[word]) * args_.gradient.softmax_scale;
    };
    upper = ptx::pack<value_t>(scaled(0), scaled(1));
    lower = ptx::pack<value_t>(scaled(2), scaled(3));
  }

  // Swaps words i and i ^ by.
  static FLASHSMITH_DEVICE void unscramble(uint32_t (&words)[kLanesPerRow], int by) {
#pragma unroll
    for (int bit = 1; bit < kLanesPerRow; bit *= 2) {
#pragma unroll
      for (int i = 0; i < kLanesPerRow; i++) {
        if (i & bit) continue;
        const uint32_t low = words[i], high = words[i | bit];
        words[i] = by & bit ? high : low;
        words[i | bit] = by & bit ? low : high;
      }
    }
  }

  FLASHSMITH_DEVICE void store(value_t *first, int row,
                               const uint32_t (&words)[kLanesPerRow]) const {
    // The address is computed anew from the row, because registers are few.
    const int64_t stride = args_.gradient.dQ_strides.seq;
    ptx::thread_store_global_16(first + ptx::recomputed(row) * stride,
                                {words[0], words[1], words[2], words[3]});
  }
};

}  // namespace flashsmith::sm90
