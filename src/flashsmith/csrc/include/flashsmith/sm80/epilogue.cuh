// O on its way out: registers -> shared memory -> coalesced 16-byte stores.
#pragma once

#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm80/gemm.cuh"

namespace flashsmith::sm80 {

// Writes this warp's accumulators, in the input type, to its rows of the tile.
template <typename Traits>
FLASHSMITH_DEVICE void store_O_to_tile(const OAccumulators<Traits> &O, ptx::shared_address tile,
                                       int lane) {
  const int row = lane / 4, word = lane % 4;
#pragma unroll
  for (int m = 0; m < Traits::m_tiles; m++) {
#pragma unroll
    for (int n = 0; n < Traits::O_n_tiles; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int offset = SmemTile<Traits>::offset(m * kMmaM + half * 8 + row, n);
        ptx::store_shared_4(
            tile + offset + word * 4,
            ptx::pack<typename Traits::value_t>(O[m][n][2 * half], O[m][n][2 * half + 1]));
      }
    }
  }
}

// Copies this warp's rows of the tile to O, neighbouring lanes at neighbouring chunks.
template <typename Traits>
FLASHSMITH_DEVICE void store_tile_to_O(typename Traits::value_t *O, int64_t row_stride,
                                       ptx::shared_address tile, int lane) {
  using T = SmemTile<Traits>;
  constexpr int kRowsPerPass = kWarpSize / T::kRowChunks;
#pragma unroll
  for (int first = 0; first < Traits::rows_per_warp; first += kRowsPerPass) {
    const int row = first + lane / T::kRowChunks, chunk = lane % T::kRowChunks;
    ptx::Chunk elements;
    ptx::load_shared_16(elements, tile + T::offset(row, chunk));
    ptx::store_global_16(O + row * row_stride + chunk * kChunkElements, elements);
  }
}

}  // namespace flashsmith::sm80
