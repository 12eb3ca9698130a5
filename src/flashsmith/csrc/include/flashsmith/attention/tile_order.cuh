// Which tile of the output has which index: the order in which tiles are worked on.
#pragma once

#include "flashsmith/params.h"
#include "flashsmith/ptx/platform.cuh"

namespace flashsmith {

// The rows of one block of Q, in one head of one batch entry.
struct WorkTile {
  int Q_block, head, batch;
};

FLASHSMITH_DEVICE int n_tiles(const ProblemArgs &problem) {
  return problem.n_Q_blocks * problem.n_heads * problem.batch;
}

// The tile with an index in the order. Head by head, Q blocks in order; or, longest first for
// causal, the last Q block of each head in a group, then the one before: K and V of a group stay in
// L2. A cluster's blocks have neighbouring indices, with Q blocks of one head side by side.
template <typename Traits>
FLASHSMITH_DEVICE WorkTile tile_at(const ProblemArgs &problem, int tile_index) {
  constexpr int kGroup = Traits::heads_per_group, kCluster = Traits::cluster_size;
  int Q_block, head;
  if constexpr (kGroup == 0) {
    head = tile_index / problem.n_Q_blocks;
    Q_block = tile_index - head * problem.n_Q_blocks;
  } else {
    const int tiles_per_group = kGroup * problem.n_Q_blocks;
    const int group = tile_index / tiles_per_group, rest = tile_index - group * tiles_per_group;
    const int n_heads = problem.n_heads * problem.batch - group * kGroup;
    const int heads = n_heads < kGroup ? n_heads : kGroup;
    const int round = rest / (heads * kCluster), within = rest - round * heads * kCluster;
    Q_block = problem.n_Q_blocks - (round + 1) * kCluster + within % kCluster;
    head = group * kGroup + within / kCluster;
  }
  const int batch = head / problem.n_heads;
  return {Q_block, head - batch * problem.n_heads, batch};
}

// One past the last row that the tile, or one side by side with it in the cluster, has.
template <typename Traits>
FLASHSMITH_DEVICE int tile_row_end(const WorkTile &tile) {
  return (tile.Q_block / Traits::cluster_size + 1) * Traits::cluster_size * Traits::B_r;
}

}  // namespace flashsmith
