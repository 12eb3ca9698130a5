// Where an element of a tile lies in shared memory, and how tiles get there from global memory.
#pragma once

#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm80/traits.cuh"

namespace flashsmith::sm80 {

// A row-major tile of 16-byte chunks. Swizzled, chunk c of row r lies at c ^ (r % 8): the eight
// rows that one phase of ldmatrix reads at equal c then cover all 32 banks, instead of the same
// four.
template <typename Traits>
struct SmemTile {
  static constexpr int kRowBytes = Traits::d_head * kElementBytes;
  static constexpr int kRowChunks = kRowBytes / kChunkBytes;
  static constexpr int kSwizzleRows = 8;

  static FLASHSMITH_DEVICE int offset(int row, int chunk) {
    const int column = Traits::swizzled ? chunk ^ (row % kSwizzleRows) : chunk;
    return row * kRowBytes + column * kChunkBytes;
  }

  // The chunk that this lane addresses for ldmatrix.x4 in the 16x16 fragment at (0, 0). The four
  // 8x8 matrices come in the order in which mma wants its registers: for Q and V left half, then
  // right; for K, whose rows are the columns of S, upper half, then lower.
  static FLASHSMITH_DEVICE int lane_offset(int lane) { return offset(lane % 16, lane / 16); }
  static FLASHSMITH_DEVICE int K_lane_offset(int lane) {
    return offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }

  // The same for the fragment at (16 * row_tile, 16 elements * column_tile). Written so that the
  // compiler sees that only four lane-dependent values occur: the swizzle permutes chunks within
  // 128 bytes, and everything beyond is a constant.
  static FLASHSMITH_DEVICE int fragment_offset(int lane_offset, int row_tile, int column_tile) {
    constexpr int kFragmentBytes = kMmaK * kElementBytes;
    constexpr int kPermutedBytes = kSwizzleRows * kChunkBytes;
    constexpr int kFragments = kPermutedBytes / kFragmentBytes;
    const int inner = column_tile % kFragments * kFragmentBytes;
    const int outer = column_tile / kFragments * kPermutedBytes + row_tile * kMmaM * kRowBytes;
    return (Traits::swizzled ? lane_offset ^ inner : lane_offset + inner) + outer;
  }
};

// Copies tiles of kRows rows of d_head elements from global memory. All threads of the block take
// part, neighbours at neighbouring chunks. With async_copy the data arrives at the wait for its
// group.
template <typename Traits, int kRows>
class TileLoader {
  using value_t = typename Traits::value_t;
  using T = SmemTile<Traits>;
  static constexpr int kRowsPerPass = Traits::n_threads / T::kRowChunks;
  static constexpr int kPasses = kRows / kRowsPerPass;
  static_assert(kRows % kRowsPerPass == 0 && kRowsPerPass % T::kSwizzleRows == 0,
                "every pass of the block copies whole groups of eight rows");

  const value_t *source_;  // this thread's first chunk
  int64_t row_stride_;
  ptx::shared_address destination_;

 public:
  // `rows`: the first row of the tile, `row_stride` elements before the second.
  FLASHSMITH_DEVICE TileLoader(ptx::shared_address tile, const value_t *rows, int64_t row_stride)
      : row_stride_(row_stride) {
    const int thread = ptx::thread_index();
    const int row = thread / T::kRowChunks, chunk = thread % T::kRowChunks;
    source_ = rows + row * row_stride + chunk * kChunkElements;
    destination_ = tile + T::offset(row, chunk);
  }

  // The next load is of the kRows rows before.
  FLASHSMITH_DEVICE void step_back() { source_ -= kRows * row_stride_; }

  FLASHSMITH_DEVICE void load() const {
    if constexpr (Traits::async_copy) {
#pragma unroll
      for (int i = 0; i < kPasses; i++) ptx::cp_async_16(destination(i), source(i));
      ptx::cp_async_commit_group();
    } else {
      // In batches: the loads of one overlap, without holding a whole tile in registers.
      constexpr int kBatch = kPasses < 4 ? kPasses : 4;
#pragma unroll
      for (int first = 0; first < kPasses; first += kBatch) {
        ptx::Chunk data[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; i++) data[i] = ptx::load_global_16(source(first + i));
#pragma unroll
        for (int i = 0; i < kBatch; i++) ptx::store_shared_16(destination(first + i), data[i]);
      }
    }
  }

 private:
  FLASHSMITH_DEVICE const value_t *source(int pass) const {
    return source_ + pass * kRowsPerPass * row_stride_;
  }
  FLASHSMITH_DEVICE ptx::shared_address destination(int pass) const {
    return destination_ + pass * kRowsPerPass * T::kRowBytes;
  }
};

}  // namespace flashsmith::sm80
