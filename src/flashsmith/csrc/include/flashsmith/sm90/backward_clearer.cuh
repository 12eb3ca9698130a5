// The sums of dQ of later heads, which the converting warps of the backward clear while the thread
// blocks work on earlier ones: memory is idle there, while the kernel of the row statistics would
// take nearly as long to clear them as to read its tensors.
//
// The sums of a head have slices, which the warps draw in the order of the heads, as far ahead of
// the heads that they convert as the host says. No thread block waits for one that may not run:
// adding threads wait for slices that their own block's warp draws, if no other one has. Before it
// draws them the warp waits for tiles of earlier heads at most, and these tiles are drawn.
#pragma once

#include "flashsmith/attention/row_statistics.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/reduction.cuh"
#include "flashsmith/ptx/shuffle.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/sm90/backward_traits.cuh"

namespace flashsmith::sm90 {

// The blocks of queries of a slice. A warp waits for a draw and for its copies once a slice.
constexpr int kSliceBlocks = 2;

// Returns the number of slices of each head of a sequence.
template <SequencePolicy Sequence>
FLASHSMITH_DEVICE int slices_per_head(const Sequence &sequence) {
  constexpr int kRows = kSliceBlocks * kStatisticsRows;
  return (sequence.seq_len_q() + kRows - 1) / kRows;
}

// Waits until the sums of a head of a sequence are cleared.
template <typename Traits>
FLASHSMITH_DEVICE void wait_until_cleared(const Sm90BackwardKernelArgs &args,
                                          const typename Traits::Sequence &sequence, int rank,
                                          int head) {
  const int of_all = rank * args.problem.n_heads + head;
  if (of_all < first_cleared_later(args.problem, args.gradient)) return;
  ptx::wait_global(args.gradient.cleared + of_all, slices_per_head(sequence));
  ptx::fence_proxy_async_global();
}

template <typename Traits>
class SumsClearer {
  using Sequence = typename Traits::Sequence;
  static constexpr int kBytes = kConvertedFloats * static_cast<int>(sizeof(float));

  const Sm90BackwardKernelArgs &args_;
  int slice_ = 0;              // the next one, counted over all heads that are cleared here
  int rank_ = 0, before_ = 0;  // of its sequence, and the slices of earlier sequences
  int head_ = 0;               // its head, counted over all batch entries by their rank

 public:
  FLASHSMITH_DEVICE explicit SumsClearer(const Sm90BackwardKernelArgs &args) : args_(args) {}

  FLASHSMITH_DEVICE void begin() {
    rank_ = first_cleared_later(args_.problem, args_.gradient) / args_.problem.n_heads;
    take(draw());
  }

  // Clears what no other warp has begun to clear, of the heads up to `n_ahead` after a head.
  FLASHSMITH_DEVICE void clear_ahead_of(int head) {
    const int end = head + args_.gradient.n_ahead;
    clear_before(end < n_heads() ? end : n_heads());
  }
  FLASHSMITH_DEVICE void clear_all() { clear_before(n_heads()); }

 private:
  FLASHSMITH_DEVICE int n_heads() const { return args_.problem.n_heads * args_.problem.batch; }

  FLASHSMITH_DEVICE void clear_before(int end) {
    if (head_ >= end) return;
    fill_buffer();
#pragma unroll 1
    while (head_ < end) take(clear_slice());
  }

  static FLASHSMITH_DEVICE ptx::shared_address buffer() {
    return ptx::shared_memory() + Traits::converted_offset;
  }

  // Fills a buffer of the converting warp, which has no sums between two blocks, with zeros.
  static FLASHSMITH_DEVICE void fill_buffer() {
    ptx::warp_sync();
#pragma unroll 1
    for (int i = ptx::lane_index() * 16; i < kBytes; i += kWarpSize * 16) {
      ptx::store_shared_16(buffer() + i, ptx::Chunk{});
    }
    ptx::fence_proxy_async();
    ptx::warp_sync();
  }

  // Draws a slice, in the first lane.
  FLASHSMITH_DEVICE int draw() const {
    if (ptx::lane_index() != 0) return 0;
    return static_cast<int>(ptx::thread_atomic_add(args_.gradient.drawn_slices, 1));
  }

  FLASHSMITH_DEVICE int batch() const { return batch_at<Traits>(args_.problem, rank_); }

  // Returns the first head of the sequence that is cleared here.
  FLASHSMITH_DEVICE int first_head() const {
    const int head =
        first_cleared_later(args_.problem, args_.gradient) - rank_ * args_.problem.n_heads;
    return head > 0 ? head : 0;
  }

  // Finds the sequence and the head of a slice that the first lane has drawn.
  FLASHSMITH_DEVICE void take(int slice) {
    slice_ = ptx::shuffle_from(slice, 0);
#pragma unroll 1
    for (; rank_ < args_.problem.batch; rank_++) {
      const int per_head = slices_per_head(Sequence(args_.problem, batch()));
      const int first = first_head(), all = (args_.problem.n_heads - first) * per_head;
      if (slice_ < before_ + all) {
        head_ = rank_ * args_.problem.n_heads + first + (slice_ - before_) / per_head;
        return;
      }
      before_ += all;
    }
    head_ = n_heads();
  }

  // Clears the slice, and draws the next one.
  FLASHSMITH_DEVICE int clear_slice() const {
    if (ptx::lane_index() != 0) return 0;
    const int batch = this->batch();
    const Sequence sequence(args_.problem, batch);
    const int block = (slice_ - before_) % slices_per_head(sequence) * kSliceBlocks;
    const int left = (sequence.seq_len_q() + kStatisticsRows - 1) / kStatisticsRows - block;
    clear_blocks(first_statistics_block(args_.gradient, sequence, batch) + block,
                 left < kSliceBlocks ? left : kSliceBlocks);
    const int next = draw();
    ptx::tma_store_wait_group<0>();
    ptx::thread_arrive_global(args_.gradient.cleared + head_);
    return next;
  }

  // Clears the sums of some blocks, which lie together.
  FLASHSMITH_DEVICE void clear_blocks(int block, int n_blocks) const {
    float *sums =
        sums_of<Traits::d_head>(args_.gradient, block, head_ - rank_ * args_.problem.n_heads);
    const int n_copies = n_blocks * (Traits::d_head / kConvertedColumns);
#pragma unroll 1
    for (int i = 0; i < n_copies; i++)
      ptx::bulk_store(sums + i * kConvertedFloats, buffer(), kBytes);
    ptx::tma_store_commit_group();
  }
};

}  // namespace flashsmith::sm90
