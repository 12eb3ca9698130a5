// The order in which the tiles of the output are worked on.
#pragma once

#include "flashsmith/attention/tile_table.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith {

// The rows of one block of Q in one head of one batch entry; if heads are packed, in all query
// heads of one head of keys, which `head` then is.
struct WorkTile {
  int Q_block, head, batch;
};

// If there are few varlen tiles, each block works on the tile of its index. The block keeps the
// tile's table entry as a word in shared memory, because a single thread of the producer cannot
// search for it: the sequence is in the lowest bits, the cluster above.
constexpr uint32_t kNoEntry = ~0u;

template <typename Traits>
FLASHSMITH_DEVICE void keep_own_entry(const ProblemArgs &problem) {
  const int index = ptx::block_index_x() / Traits::cluster_size / heads_of_tiles<Traits>(problem);
  const TileTable::Entry own = find_entry<Traits>(problem, index);
  const uint32_t word = own.cluster == kNoCluster ? kNoEntry : own.cluster * kWarpSize + own.batch;
  if (ptx::thread_index() % kWarpSize > 0) return;
  ptx::thread_store_shared_4(ptx::shared_memory() + Traits::own_entry_offset, word);
}

template <typename Traits>
FLASHSMITH_DEVICE uint32_t own_entry() {
  return ptx::thread_load_shared_4(ptx::shared_memory() + Traits::own_entry_offset);
}

// Returns the number of tiles. If there are few varlen tiles, blocks without one have exited before
// this.
template <typename Traits>
FLASHSMITH_DEVICE int n_tiles(const ProblemArgs &problem) {
  if constexpr (Traits::Sequence::kVarlen) {
    const TileTable table{problem.tiles};
    if (!table.is_made()) return ptx::grid_size_x();
    return table.size() * heads_of_tiles<Traits>(problem) * Traits::cluster_size;
  } else {
    return problem.n_Q_blocks * heads_of_tiles<Traits>(problem) * problem.batch;
  }
}

// Returns the varlen tile at an index. The order is the whole table for one group of heads, then
// for the next; each table entry takes the heads of the group in turn.
template <typename Traits>
FLASHSMITH_DEVICE WorkTile listed_tile_at(const ProblemArgs &problem, int tile_index) {
  constexpr int kGroup = Traits::heads_per_group > 0 ? Traits::heads_per_group : 16;
  constexpr int kCluster = Traits::cluster_size;
  const TileTable table{problem.tiles};
  if (!table.is_made()) {
    const auto own = static_cast<int>(own_entry<Traits>());
    return {.Q_block = own / kWarpSize * kCluster + tile_index % kCluster,
            .head = tile_index / kCluster % heads_of_tiles<Traits>(problem),
            .batch = own % kWarpSize};
  }
  const int index = tile_index / kCluster, tiles_per_group = kGroup * table.size();
  const int group = index / tiles_per_group, rest = index - group * tiles_per_group;
  const int n_heads = heads_of_tiles<Traits>(problem) - group * kGroup;
  const int heads = n_heads < kGroup ? n_heads : kGroup;
  const TileTable::Entry entry = table[rest / heads];
  return {.Q_block = entry.cluster * kCluster + tile_index % kCluster,
          .head = group * kGroup + rest % heads,
          .batch = entry.batch};
}

// Returns the tile at an index. The order is head by head with ascending Q blocks; or, for causal
// masks, longest first: the last Q block of each head in a group, then the one before, so that K
// and V of a group stay in L2. The blocks of a cluster have neighbouring indices and Q blocks, and
// one head.
template <typename Traits>
FLASHSMITH_DEVICE WorkTile tile_at(const ProblemArgs &problem, int tile_index) {
  if constexpr (Traits::Sequence::kVarlen) return listed_tile_at<Traits>(problem, tile_index);
  constexpr int kGroup = Traits::heads_per_group, kCluster = Traits::cluster_size;
  int Q_block, head;
  if constexpr (kGroup == 0) {
    head = tile_index / problem.n_Q_blocks;
    Q_block = tile_index - head * problem.n_Q_blocks;
  } else {
    const int tiles_per_group = kGroup * problem.n_Q_blocks;
    const int group = tile_index / tiles_per_group, rest = tile_index - group * tiles_per_group;
    const int n_heads = heads_of_tiles<Traits>(problem) * problem.batch - group * kGroup;
    const int heads = n_heads < kGroup ? n_heads : kGroup;
    const int round = rest / (heads * kCluster), within = rest - round * heads * kCluster;
    Q_block = problem.n_Q_blocks - (round + 1) * kCluster + within % kCluster;
    head = group * kGroup + within / kCluster;
  }
  const int n_heads = heads_of_tiles<Traits>(problem), batch = head / n_heads;
  return {Q_block, head - batch * n_heads, batch};
}

}  // namespace flashsmith
