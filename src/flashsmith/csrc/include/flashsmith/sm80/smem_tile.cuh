// Where an element of a tile lies in shared memory, and how tiles get there from global memory.
#pragma once

#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm80/traits.cuh"

namespace flashsmith::sm80 {

// A row-major tile of 16-byte chunks. Swizzled, chunks are permuted inside lines of 128 bytes, or
// of 64 or 32 where rows are not whole lines of more: the eight rows that one phase of ldmatrix
// reads at equal chunks then cover all 32 banks, instead of the same four. So do rows that are an
// odd number of chunks apart.
template <typename Traits>
struct SmemTile {
  static constexpr int kRowBytes = (Traits::d_head + Traits::row_padding) * kElementBytes;
  static constexpr int kRowChunks = Traits::d_head / kChunkElements;
  static constexpr int kSwizzleRows = 8;
  static constexpr int kPermutedChunks = kRowChunks % 8 == 0 ? 8 : kRowChunks % 4 == 0 ? 4 : 2;
  static_assert(kRowChunks % kPermutedChunks == 0, "the swizzle permutes inside whole lines");

  static FLASHSMITH_DEVICE int offset(int row, int chunk) {
    // Rows of an odd number of 64-byte lines lie in turn in either half of the banks, so that only
    // every other row needs another permutation; of 32-byte lines in four parts, likewise.
    const int permutation = row % kSwizzleRows / (kSwizzleRows / kPermutedChunks);
    const int column = Traits::config.swizzled ? chunk ^ permutation : chunk;
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
  // compiler sees that only a few lane-dependent values occur: the swizzle permutes chunks within a
  // line, and everything beyond is a constant.
  static FLASHSMITH_DEVICE int fragment_offset(int lane_offset, int row_tile, int column_tile) {
    constexpr int kFragmentBytes = kMmaK * kElementBytes;
    constexpr int kPermutedBytes = kPermutedChunks * kChunkBytes;
    constexpr int kFragments = kPermutedBytes / kFragmentBytes;
    const int inner = column_tile % kFragments * kFragmentBytes;
    const int outer = column_tile / kFragments * kPermutedBytes + row_tile * kMmaM * kRowBytes;
    return (Traits::config.swizzled ? lane_offset ^ inner : lane_offset + inner) + outer;
  }
};

// How kThreads threads share a tile's chunks, one each at a time: neighbours have neighbouring
// chunks of a row. A panel is as many columns of chunks as they take side by side.
template <typename Traits, int kThreads>
struct ChunkWalk {
  static constexpr int kRowChunks = SmemTile<Traits>::kRowChunks;
  static constexpr int kMaxChunks = 16;  // 256 bytes of a row are two lines of L2
  static constexpr int kPowerOfTwo = kRowChunks & -kRowChunks;  // the largest that divides
  static constexpr int kPanelChunks = kPowerOfTwo < kMaxChunks ? kPowerOfTwo : kMaxChunks;
  static constexpr int kPanels = kRowChunks / kPanelChunks;
  static constexpr int kRows = kThreads / kPanelChunks;

  int row, chunk;  // the first of this thread

  explicit FLASHSMITH_DEVICE ChunkWalk(int thread)
      : row(thread / kPanelChunks), chunk(thread % kPanelChunks) {}
};

// Copies tiles of kRows rows from global memory. All threads of the block take part. Where rows are
// shorter than d_head, zeros make up for it. With async_copy the data arrives at the wait for its
// group.
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
  int chunks_left_;  // of a row, from this thread's first on

 public:
  // `rows`: the first row of the tile, `row_stride` elements before the second.
  FLASHSMITH_DEVICE TileLoader(ptx::shared_address tile, const value_t *rows, int64_t row_stride,
                               int row_elements, int thread = ptx::thread_index())
      : row_stride_(row_stride) {
    const Walk walk(thread);
    source_ = rows + walk.row * row_stride + walk.chunk * kChunkElements;
    destination_ = tile + T::offset(walk.row, walk.chunk);
    row_ = walk.row;
    chunks_left_ = row_elements / kChunkElements - walk.chunk;
  }

  // The next load is of the kRows rows before.
  FLASHSMITH_DEVICE void step_back() { source_ -= kRows * row_stride_; }

  // All rows of the tile are there.
  FLASHSMITH_DEVICE void load() const { load_rows<false>(kRows); }

  // The first n_rows rows are there, or more; zeros stand in for the others.
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
      // In batches: the loads of one overlap, without holding a whole tile in registers.
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

  // Passes go down the rows of a panel, then on to the next.
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
