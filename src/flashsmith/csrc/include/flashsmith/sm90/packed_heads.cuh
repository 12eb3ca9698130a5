// Packed heads ("PackGQA"): a tile has the rows of all query heads that share a head of K and V,
// query by query, the heads of a query side by side. Short sequences then fill their tiles, and a
// causal tile has fewer queries, so that more of its scores are visible.
//
// Each warpgroup has whole queries, as many as fit into the 64 rows of a wgmma. With 7 heads
//
//    row      0  1  2  3  4  5  6 |  7  8 ... | 56 ... 62 | 63
//    query             0          |     1     |     8     |  -
//    head     0  1  2  3  4  5  6 |  0  1 ... |  0 ...  6 |  -
//
// one row is left, whose Q is zero. All rows of a warpgroup are one box of a map, so one copy loads
// them, and one stores them.
#pragma once

#include "flashsmith/attention/output.cuh"
#include "flashsmith/attention/tile_order.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

// The following functions return the number of queries of a warpgroup and of a tile.
template <typename Traits>
FLASHSMITH_DEVICE int warpgroup_queries(const Sm90ForwardKernelArgs &args) {
  return Traits::packed_heads ? args.group.queries : kWgmmaM;
}
template <typename Traits>
FLASHSMITH_DEVICE int tile_queries(const Sm90ForwardKernelArgs &args) {
  return Traits::n_warpgroups * warpgroup_queries<Traits>(args);
}

// The following functions return the first query, and one past the last query, of the tiles in the
// cluster of a tile.
template <typename Traits>
FLASHSMITH_DEVICE int tile_row_begin(const Sm90ForwardKernelArgs &args, const WorkTile &tile) {
  return tile.Q_block / Traits::cluster_size * Traits::cluster_size * tile_queries<Traits>(args);
}
template <typename Traits>
FLASHSMITH_DEVICE int tile_row_end(const Sm90ForwardKernelArgs &args, const WorkTile &tile) {
  return tile_row_begin<Traits>(args, tile) + Traits::cluster_size * tile_queries<Traits>(args);
}

// The packed rows of a consumer thread. They are computed from the thread's index at each use, so
// that none is in a register meanwhile.
class PackedRows {
  const HeadGroup &group_;
  const int first_;  // query of the warpgroup

  // Returns a row of the lane, among those of the warpgroup.
  static FLASHSMITH_DEVICE int own(int half) {
    const int thread = ptx::thread_index() % kWarpgroupSize;
    return thread / kWarpSize * kWarpRows + first_row(thread % kWarpSize) + half * kRowsPerHalf;
  }
  FLASHSMITH_DEVICE int query_of(int row) const { return row * group_.reciprocal >> 16; }

 public:
  FLASHSMITH_DEVICE PackedRows(const HeadGroup &group, int first) : group_(group), first_(first) {}

  // Returns the query of a row, in the sequence; a row that is left counts as one of the next.
  FLASHSMITH_DEVICE int query(int half) const { return first_ + query_of(own(half)); }

  // Returns the row with its head, if `head_kv` is the head of keys. A row that is left is beyond
  // every sequence.
  FLASHSMITH_DEVICE LaneRow row(int half, int head_kv) const {
    constexpr int kNoQuery = 0x7fffffff;
    const int query = query_of(own(half)), head = own(half) - query * group_.size;
    return {.row = query < group_.queries ? first_ + query : kNoQuery,
            .head = head_kv * group_.size + head};
  }
};

// Sets to zero the rows of Q that no copy fills, for the whole kernel. All threads call this before
// they meet for the first time.
template <typename Traits>
FLASHSMITH_DEVICE void clear_left_rows(const HeadGroup &group) {
  constexpr BoxedRows kTile = Traits::Q_tile;
  constexpr int kWords = kTile.row_bytes / static_cast<int>(sizeof(uint32_t));
  const int filled = group.size * group.queries, n_words = (kWgmmaM - filled) * kWords;
  if (n_words == 0) return;
#pragma unroll 1
  for (int part = 0; part < Traits::n_warpgroups * kTile.n_boxes; part++) {
    const int warpgroup = part / kTile.n_boxes, box = part % kTile.n_boxes;
    const ptx::shared_address rows = ptx::shared_memory() + Traits::Q_offset +
                                     box * kTile.box_bytes +
                                     (warpgroup * kWgmmaM + filled) * kTile.row_bytes;
#pragma unroll 1
    for (int word = ptx::thread_index(); word < n_words; word += Traits::n_threads) {
      ptx::thread_store_shared_4(rows + word * sizeof(uint32_t), 0);
    }
  }
  if constexpr (!Traits::Q_in_registers) ptx::fence_proxy_async();  // before wgmma reads them
}

}  // namespace flashsmith::sm90
