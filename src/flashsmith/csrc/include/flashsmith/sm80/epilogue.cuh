// Stores O: registers -> shared memory -> coalesced 16-byte stores.
#pragma once

#include "flashsmith/attention/output.cuh"
#include "flashsmith/attention/tile_order.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm80/gemm.cuh"

namespace flashsmith::sm80 {

// Writes 16 rows of O, scaled by row and in the input type, to this warp's rows of the tile from
// `first` on.
template <typename Traits>
FLASHSMITH_DEVICE void store_O_to_tile(const Fragment<Traits::d_head> &O,
                                       const float (&factor)[kHalves], ptx::shared_address tile,
                                       int first) {
  const int lane = ptx::thread_index() % kWarpSize, word = lane % kLanesPerRow;
#pragma unroll
  for (int i = 0; i < Traits::d_head / 2; i += 2) {
    const int half = half_of(i), row = first + first_row(lane) + half * kRowsPerHalf;
    const ptx::shared_address chunk = tile + SmemTile<Traits>::offset(row, i / 4);
    ptx::store_shared_4(chunk + word * 4, ptx::pack<typename Traits::value_t>(
                                              O[i] * factor[half], O[i + 1] * factor[half]));
  }
}

// Copies kRows rows of the tile to O, neighbouring lanes of a warp at neighbouring chunks. Only the
// first n_rows rows exist in the sequence (all, if there are more), and only the first n_chunks
// chunks in O.
template <typename Traits, int kRows = Traits::rows_per_warp>
FLASHSMITH_DEVICE void store_tile_to_O(typename Traits::value_t *O, int64_t row_stride,
                                       ptx::shared_address tile, int n_rows, int n_chunks) {
  using T = SmemTile<Traits>;
  using Walk = ChunkWalk<Traits, kWarpSize>;
  const Walk walk(ptx::thread_index() % kWarpSize);
#pragma unroll
  for (int first = 0; first < kRows; first += Walk::kRows) {
#pragma unroll
    for (int panel = 0; panel < Walk::kPanels; panel++) {
      const int row = first + walk.row, chunk = walk.chunk + panel * Walk::kPanelChunks;
      ptx::Chunk elements;
      ptx::load_shared_16(elements, tile + T::offset(row, chunk));
      ptx::store_global_16_if(row < n_rows && (!Traits::padded || chunk < n_chunks),
                              O + row * row_stride + chunk * kChunkElements, elements);
    }
  }
}

// Returns the block's entry of the tile table, whether or not a launch has made the table. Returns
// cluster kNoCluster if there are fewer entries than blocks.
template <typename Traits>
FLASHSMITH_DEVICE TileTable::Entry entry_of_block(const ProblemArgs &problem) {
  const TileTable table{problem.tiles};
  const int x = ptx::block_index_x();
  if (!table.is_made()) return find_entry<Traits>(problem, x);
  return x < table.size() ? table[x] : TileTable::Entry{kNoCluster, 0};
}

// Returns the block's tile. Causal blocks of Q near the end see the most keys: they start first, so
// that no long one remains at the end. Q_block kNoCluster: the block has no tile.
template <typename Traits>
FLASHSMITH_DEVICE WorkTile tile_of_block(const ProblemArgs &problem) {
  if constexpr (Traits::Sequence::kVarlen) {
    const TileTable::Entry entry = entry_of_block<Traits>(problem);
    return {.Q_block = entry.cluster, .head = ptx::block_index_y(), .batch = entry.batch};
  }
  const int x = ptx::block_index_x();
  return {.Q_block = Traits::Mask::kAhead ? problem.n_Q_blocks - 1 - x : x,
          .head = ptx::block_index_y(),
          .batch = ptx::block_index_z()};
}

// Writes this warp's rows of the block's tile, and their LSE if the caller wants it. O is stored
// through the warp's rows of Q's tile: the last barrier came after their last read. The tile's
// position is recomputed, so that the loop over K and V has the registers.
template <typename Traits>
FLASHSMITH_DEVICE void store_tile(const ForwardKernelArgs &args, const OAccumulators<Traits> &O,
                                  const Softmax<Traits> (&softmax)[Traits::m_tiles]) {
  const ProblemArgs &problem = args.problem;
  const WorkTile tile = tile_of_block<Traits>(problem);
  const int warp_row = ptx::recomputed(ptx::thread_index()) / kWarpSize * Traits::rows_per_warp;
  const int row = tile.Q_block * Traits::B_r + warp_row;
  const ptx::shared_address rows =
      ptx::shared_memory() + Traits::Q_offset + warp_row * SmemTile<Traits>::kRowBytes;
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) {
    float factor[kHalves];
    finish_rows(factor, softmax[m], problem, {row + m * kMmaM, tile.head, tile.batch});
    store_O_to_tile<Traits>(O[m], factor, rows, m * kMmaM);
  }
  ptx::warp_sync();
  const typename Traits::Sequence sequence(problem, tile.batch);
  const TensorStrides &strides = problem.O_strides;
  const RowOffset place = sequence.queries();
  auto *first = static_cast<typename Traits::value_t *>(problem.O) + place.batch * strides.batch +
                tile.head * strides.head + (place.row + row) * strides.seq;
  store_tile_to_O<Traits>(first, strides.seq, rows, sequence.seq_len_q() - row,
                          problem.d_v / kChunkElements);
}

}  // namespace flashsmith::sm80
