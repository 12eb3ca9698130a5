// The warps that transpose V of 8 bits: wgmma takes operands of 8 bits with K contiguous, and V
// arrives with d_head so.
//
// ldmatrix transposes units of 16 bits, here the numbers of two neighbouring columns of V. A lane
// gets those of keys 2 p, 2 p + 1, 2 p + 8 and 2 p + 9 of 16, and makes of them a word for either
// column: four places of a row of V^T, in which keys are in the order in which P has them
// (pack_operand_e4m3), so that nobody has to exchange anything.
#pragma once

#include "flashsmith/ptx/bytes.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/sm90/pipeline.cuh"

namespace flashsmith::sm90 {

// Not 0: with this buffer nothing arrived, because all has.
template <typename Traits>
FLASHSMITH_DEVICE ptx::shared_address end_word(int buffer) {
  return ptx::shared_memory() + Traits::end_offset + buffer * sizeof(uint32_t);
}

// Before any other thread reads one.
template <typename Traits>
FLASHSMITH_DEVICE void clear_end_words() {
  for (int i = 0; i < Traits::n_stages; i++) ptx::thread_store_shared_4(end_word<Traits>(i), false);
}

template <typename Traits>
class Transposer {
  static constexpr BoxedRows kFrom = Traits::V_tile, kTo = Traits::transposed_V_tile;
  // Of a unit: 32 keys, of which wgmma sums over two chunks, by a chunk of columns.
  static constexpr int kKeys = 32, kColumns = 16, kChunkBytes = 16;
  static constexpr int kColumnUnits = Traits::d_head / kColumns;
  static constexpr int kUnits = Traits::B_c / kKeys * kColumnUnits;
  // Units that are read before the first of them is written, so that latencies overlap.
  static constexpr int kBatch = kColumnUnits % 4 == 0 ? 4 : 2;

  const int warp_, lane_;

 public:
  // `warp`: of those that transpose.
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
  FLASHSMITH_DEVICE void transpose(ptx::shared_address from, ptx::shared_address to) const {
    // Where this lane's row of a unit is read: of its key.
    const ptx::shared_address read = from + lane_ * kFrom.row_bytes;
    const int read_permutation = permutation<kFrom>(lane_);
    // And written: of two matrices the even columns, and the odd ones, but in their lower halves
    // the other way round, so that eight rows in a matrix are in eight different chunks.
    const bool lower = lane_ / 4 % 2;
    const int column = lane_ % 8 * 2 + (lane_ / 8 % 2 ^ lower);
    const ptx::shared_address write = to + column * kTo.row_bytes;
    const int write_permutation = permutation<kTo>(column);
    constexpr uint32_t kEven = 0x6420, kOdd = 0x7531;  // of two words of two keys of two columns
    const uint32_t first = lane_ < kWarpSize / 2 ? kEven : kOdd, second = first ^ kEven ^ kOdd;
#pragma unroll 1  // the thread has few registers
    for (int unit = warp_ * kBatch; unit < kUnits; unit += kTransposingWarps * kBatch) {
      const int columns = unit % kColumnUnits * kColumns, keys = unit / kColumnUnits * kKeys;
      uint32_t in[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; i++) {
        ptx::ldmatrix_x4<true>(in[i],
                               read + keys * kFrom.row_bytes +
                                   chunk<kFrom>(columns / kChunkBytes + i, read_permutation));
      }
      const ptx::shared_address to_columns =
          write + columns * kTo.row_bytes +
          chunk<kTo>(keys / kChunkBytes + lane_ / 16, write_permutation);
#pragma unroll
      for (int i = 0; i < kBatch; i++) {
        const uint32_t out[4] = {ptx::permute_bytes(in[i][0], in[i][1], first),
                                 ptx::permute_bytes(in[i][0], in[i][1], second),
                                 ptx::permute_bytes(in[i][2], in[i][3], first),
                                 ptx::permute_bytes(in[i][2], in[i][3], second)};
        ptx::stmatrix_x4(to_columns + i * kColumns * kTo.row_bytes, out);
      }
    }
  }

  // How the swizzle permutes a row's chunks.
  template <BoxedRows kTile>
  static FLASHSMITH_DEVICE int permutation(int row) {
    return row * kTile.row_bytes / 128 % (kTile.row_bytes / kChunkBytes);
  }
  template <BoxedRows kTile>
  static FLASHSMITH_DEVICE int chunk(int index, int permutation) {
    constexpr int kOfBox = kTile.row_bytes / kChunkBytes;
    return index / kOfBox * kTile.box_bytes + (index % kOfBox ^ permutation) * kChunkBytes;
  }
};

}  // namespace flashsmith::sm90
