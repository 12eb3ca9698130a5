// The warps that transpose FP8 V: wgmma takes FP8 operands with K contiguous, and V arrives with
// d_head contiguous.
//
// ldmatrix transposes units of 16 bits, here the numbers of two neighbouring columns of V. A lane
// gets the units of keys 2 p, 2 p + 1, 2 p + 8 and 2 p + 9 of 16, and makes a word of them for each
// column: four positions of a row of V^T, in which keys are in the order that they have in P
// (pack_operand_e4m3), so that lanes need not exchange anything.
#pragma once

#include "flashsmith/ptx/bytes.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/sm90/pipeline.cuh"

namespace flashsmith::sm90 {

// Returns the address of a buffer's end word. It is not 0 if nothing has arrived with this buffer,
// because all V has arrived.
template <typename Traits>
FLASHSMITH_DEVICE ptx::shared_address end_word(int buffer) {
  return ptx::shared_memory() + Traits::end_offset + buffer * sizeof(uint32_t);
}

// Called before any other thread reads an end word.
template <typename Traits>
FLASHSMITH_DEVICE void clear_end_words() {
  for (int i = 0; i < Traits::n_stages; i++) ptx::thread_store_shared_4(end_word<Traits>(i), false);
}

template <typename Traits>
class Transposer {
  static constexpr BoxedRows kFrom = Traits::V_tile, kTo = Traits::transposed_V_tile;
  // A unit is 32 keys, two chunks in the sum of one wgmma, by the columns of one chunk.
  static constexpr int kKeys = 32, kColumns = 16, kChunkBytes = 16;
  // The number of chunks in a row of a box, among which the swizzle permutes.
  static constexpr int kFromChunks = kFrom.row_bytes / kChunkBytes;
  static constexpr int kToChunks = kTo.row_bytes / kChunkBytes;
  // The number of units that are read before the first of them is written, so that latencies
  // overlap. They are neighbours in one box.
  static constexpr int kBatch = Traits::d_head / kColumns % 4 == 0 ? 4 : 2;
  static constexpr int kColumnBatches = Traits::d_head / (kColumns * kBatch);
  static constexpr int kBatches = Traits::B_c / kKeys * kColumnBatches;
  static_assert(kFromChunks % kBatch == 0, "a batch lies in one box");

  const int warp_, lane_;

 public:
  // `warp` is the index among the warps that transpose.
  FLASHSMITH_DEVICE explicit Transposer(int warp)
      : warp_(warp), lane_(ptx::thread_index() % kWarpSize) {}

  FLASHSMITH_DEVICE void run() const {
    const ptx::shared_address shared = ptx::shared_memory();
    for (RingPosition<Traits::n_stages> stage;; stage.advance()) {
      const BufferBarriers from = Barriers<Traits>::arriving_V(stage.buffer);
      const BufferBarriers to = Barriers<Traits>::V(stage.buffer);
      ptx::mbarrier_wait_parity(from.full, stage.parity);
      if (ptx::load_shared_4(end_word<Traits>(stage.buffer)) != 0) return;
      ptx::mbarrier_wait_parity(to.empty, stage.parity ^ 1);
      const int buffer = stage.buffer * Traits::V_bytes;
      transpose(shared + Traits::arriving_V_offset + buffer, shared + Traits::V_offset + buffer);
      ptx::fence_proxy_async();
      ptx::warp_sync();
      if (lane_ == 0) {
        ptx::mbarrier_arrive(from.empty);
        ptx::mbarrier_arrive(to.full);
      }
    }
  }

 private:
  // Transposes one buffer. The swizzle is an exclusive or of a chunk's number with bits of the row.
  // Addresses here include these bits from the beginning, so that another exclusive or leads to
  // another chunk.
  FLASHSMITH_DEVICE void transpose(ptx::shared_address from, ptx::shared_address to) const {
    // The address of this lane's row (a key) of a unit to read.
    const ptx::shared_address read =
        from + lane_ * kFrom.row_bytes + chunk_permutation<kFrom.row_bytes>(lane_) * kChunkBytes;
    // The address of this lane's row to write: of each pair of matrices one has the even columns
    // and one the odd columns, but the other way round in their lower halves, so that the eight
    // rows of a matrix are in eight different chunks.
    const bool lower = lane_ / 4 % 2;
    const int column = lane_ % 8 * 2 + (lane_ / 8 % 2 ^ lower);
    const ptx::shared_address write =
        to + column * kTo.row_bytes +
        (lane_ / 16 ^ chunk_permutation<kTo.row_bytes>(column)) * kChunkBytes;
    constexpr uint32_t kEven = 0x6420, kOdd = 0x7531;  // even and odd bytes of two words
    const uint32_t first = lane_ < kWarpSize / 2 ? kEven : kOdd, second = first ^ kEven ^ kOdd;
#pragma unroll 1  // the thread has few registers
    for (uint32_t batch = warp_; batch < kBatches; batch += kTransposingWarps) {
      const uint32_t columns = batch % kColumnBatches * kBatch;  // in chunks
      const uint32_t keys = batch / kColumnBatches * kKeys;
      const ptx::shared_address batch_from = (read ^ columns % kFromChunks * kChunkBytes) +
                                             columns / kFromChunks * kFrom.box_bytes +
                                             keys * kFrom.row_bytes;
      uint32_t in[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; i++) {
        ptx::ldmatrix_x4<true>(in[i], batch_from ^ i * kChunkBytes);
      }
      const ptx::shared_address batch_to = (write ^ keys / kChunkBytes % kToChunks * kChunkBytes) +
                                           keys / kChunkBytes / kToChunks * kTo.box_bytes +
                                           columns * kColumns * kTo.row_bytes;
#pragma unroll
      for (int i = 0; i < kBatch; i++) {
        const uint32_t out[4] = {ptx::permute_bytes(in[i][0], in[i][1], first),
                                 ptx::permute_bytes(in[i][0], in[i][1], second),
                                 ptx::permute_bytes(in[i][2], in[i][3], first),
                                 ptx::permute_bytes(in[i][2], in[i][3], second)};
        ptx::stmatrix_x4(batch_to + i * kColumns * kTo.row_bytes, out);
      }
    }
  }
};

}  // namespace flashsmith::sm90
