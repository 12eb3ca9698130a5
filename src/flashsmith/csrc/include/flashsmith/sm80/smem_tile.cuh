// The layout of a tile in shared memory, and the copies of tiles from global memory.
#pragma once

#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm80/traits.cuh"

namespace flashsmith::sm80 {

// A row-major tile of 16-byte chunks. With the swizzle, chunks are permuted inside lines of 128
// bytes, or of 64 or 32 bytes if rows are not whole lines of more: the eight rows that one phase of
// ldmatrix reads at equal chunks then cover all 32 banks, instead of the same four. Rows that are
// an odd number of chunks apart do so without it.
template <typename Traits>
struct SmemTile {
  static constexpr int kRowBytes = (Traits::d_head + Traits::row_padding) * kElementBytes;
  static constexpr int kRowChunks = Traits::d_head / kChunkElements;
  static constexpr int kSwizzleRows = 8;
  static constexpr int kPermutedChunks = kRowChunks % 8 == 0 ? 8 : kRowChunks % 4 == 0 ? 4 : 2;
  static_assert(kRowChunks % kPermutedChunks == 0, "the swizzle permutes inside whole lines");

  static FLASHSMITH_DEVICE int offset(int row, int chunk) {
    // If a row is an odd number of 64-byte lines, consecutive rows alternate between the halves of
    // the banks, so that only every second row needs another permutation; with 32-byte lines they
    // cycle through the quarters, and every fourth row does.
    const int permutation = row % kSwizzleRows / (kSwizzleRows / kPermutedChunks);
    const int column = Traits::config.swizzled ? chunk ^ permutation : chunk;
    return row * kRowBytes + column * kChunkBytes;
  }

  // The following functions return the offset of the chunk that this lane addresses for ldmatrix.x4
  // in the 16x16 fragment at (0, 0). The four 8x8 matrices come in the order in which mma needs its
  // registers: for Q and V left half, then right; for K, whose rows are the columns of S, upper
  // half, then lower.
  static FLASHSMITH_DEVICE int lane_offset(int lane) { return offset(lane % 16, lane / 16); }
  static FLASHSMITH_DEVICE int K_lane_offset(int lane) {
    return offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }

  // Returns the same for the fragment at (16 * row_tile, 16 elements * column_tile). The formula
  // shows the compiler that only a few lane-dependent values occur: the swizzle permutes chunks
  // within a line, and everything beyond is a constant.
  static FLASHSMITH_DEVICE int fragment_offset(int lane_offset, int row_tile, int column_tile) {
    constexpr int kFragmentBytes = kMmaK * kElementBytes;
    constexpr int kPermutedBytes = kPermutedChunks * kChunkBytes;
    constexpr int kFragments = kPermutedBytes / kFragmentBytes;
    const int inner = column_tile % kFragments * kFragmentBytes;
    const int outer = column_tile / kFragments * kPermutedBytes + row_tile * kMmaM * kRowBytes;
    return (Traits::config.swizzled ? lane_offset ^ inner : lane_offset + inner) + outer;
  }
};

// The distribution of a tile's chunks to kThreads threads, one chunk each at a time: neighbouring
// threads have neighbouring chunks of a row. A panel is as many columns of chunks as they take side
// by side.
template <typename Traits, int kThreads>
struct ChunkWalk {
  static constexpr int kRowChunks = SmemTile<Traits>::kRowChunks;
  static constexpr int kMaxChunks = 16;  // 256 bytes of a row are two lines of L2
  static constexpr int kPowerOfTwo = kRowChunks & -kRowChunks;  // the largest that divides
  static constexpr int kPanelChunks = kPowerOfTwo < kMaxChunks ? kPowerOfTwo : kMaxChunks;
  static constexpr int kPanels = kRowChunks / kPanelChunks;
  static constexpr int kRows = kThreads / kPanelChunks;

  int row, chunk;  // this thread's first

  explicit FLASHSMITH_DEVICE ChunkWalk(int thread)
      : row(thread / kPanelChunks), chunk(thread % kPanelChunks) {}
};

// Copies tiles of kRows rows from global memory. All threads of the block take part. If rows are
// shorter than d_head, they are padded with zeros. With async_copy the data arrives at the wait for
// its group.
template <typename Traits, int kRows>
class TileLoader {
  using value_t = typename Traits::value_t;
  using T = SmemTile<Traits>;
  using Walk = ChunkWalk<Traits, Traits::n_threads>;
  static constexpr int kPasses = kRows / Walk::kRows * Walk::kPanels;
  static_assert(kRows % Walk::kRows == 0 && Walk::kRows % T::kSwizzleRows == 0,
                "every pass of the block copies whole groups of eight rows");

  const value_t *source_;  // this thread's first chunk
  int64_t row_stride_;
  ptx::shared_address destination_;
  int row_;
  int chunks_left_;  // in a row, from this thread's first chunk on

 public:
  // `rows` is the first row of the tile, and rows are `row_stride` elements apart.
  FLASHSMITH_DEVICE TileLoader(ptx::shared_address tile, const value_t *rows, int64_t row_stride,
                               int row_elements, int thread = ptx::thread_index())
      : row_stride_(row_stride) {
    const Walk walk(thread);
    source_ = rows + walk.row * row_stride + walk.chunk * kChunkElements;
    destination_ = tile + T::offset(walk.row, walk.chunk);
    row_ = walk.row;
    chunks_left_ = row_elements / kChunkElements - walk.chunk;
  }

  // Moves the next load to the previous kRows rows.
  FLASHSMITH_DEVICE void step_back() { source_ -= kRows * row_stride_; }

  // Loads the tile, all of whose rows exist.
  FLASHSMITH_DEVICE void load() const { load_rows<false>(kRows); }

  // Loads the tile, of which the first n_rows rows exist (all, if n_rows is larger); missing rows
  // are zeros.
  FLASHSMITH_DEVICE void load_partial(int n_rows) const { load_rows<true>(n_rows); }

 private:
  template <bool kPartial>
  FLASHSMITH_DEVICE void load_rows(int n_rows) const {
    if constexpr (Traits::config.async_copy) {
#pragma unroll
      for (int i = 0; i < kPasses; i++) {
        if constexpr (kPartial || Traits::padded) {
          ptx::cp_async_16_or_zero(destination(i), source(i), is_there<kPartial>(i, n_rows));
        } else {
          ptx::cp_async_16(destination(i), source(i));
        }
      }
      ptx::cp_async_commit_group();
    } else {
      // Loads are batched: those of a batch overlap, without a whole tile in registers.
      constexpr int kBatch = kPasses < 4 ? kPasses : 4;
#pragma unroll
      for (int first = 0; first < kPasses; first += kBatch) {
        ptx::Chunk data[kBatch];
#pragma unroll
        for (int i = first; i < first + kBatch && i < kPasses; i++) {
          data[i - first] =
              kPartial || Traits::padded
                  ? ptx::load_global_16_or_zero(source(i), is_there<kPartial>(i, n_rows))
                  : ptx::load_global_16(source(i));
        }
#pragma unroll
        for (int i = first; i < first + kBatch && i < kPasses; i++) {
          ptx::store_shared_16(destination(i), data[i - first]);
        }
      }
    }
  }

  // The passes go down the rows of a panel, then to the next panel.
  static constexpr int kPassesOfPanel = kRows / Walk::kRows;
  FLASHSMITH_DEVICE int row(int pass) const { return row_ + pass % kPassesOfPanel * Walk::kRows; }
  template <bool kPartial>
  FLASHSMITH_DEVICE bool is_there(int pass, int n_rows) const {
    if (Traits::padded && pass / kPassesOfPanel * Walk::kPanelChunks >= chunks_left_) return false;
    return !kPartial || row(pass) < n_rows;
  }
  FLASHSMITH_DEVICE const value_t *source(int pass) const {
    const int columns = pass / kPassesOfPanel * Walk::kPanelChunks * kChunkElements;
    return source_ + pass % kPassesOfPanel * Walk::kRows * row_stride_ + columns;
  }
  FLASHSMITH_DEVICE ptx::shared_address destination(int pass) const {
    const int columns = pass / kPassesOfPanel * Walk::kPanelChunks * kChunkBytes;
    return destination_ + pass % kPassesOfPanel * Walk::kRows * T::kRowBytes + columns;
  }
};

}  // namespace flashsmith::sm80
