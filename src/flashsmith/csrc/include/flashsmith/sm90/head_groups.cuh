// The order in which the thread blocks of a backward start: heads in groups, if some tiles of a
// head take longer than others.
#pragma once

#include "flashsmith/ptx/schedule.cuh"

namespace flashsmith::sm90 {

struct TileOfHead {
  int tile, head;  // heads are counted over all batch entries
};

// Returns the tile at an index. The order has all tiles of a group of heads, the first tile of each
// head, then the second of each; then the next group. The data that a group reads and accumulates
// stays in L2.
FLASHSMITH_DEVICE TileOfHead tile_in_groups(int index, int tiles_per_head, int n_heads,
                                            int heads_per_group) {
  // The divisor is recomputed, so that nothing of the divisions stays in a register across tiles.
  const int tiles_per_group = ptx::recomputed(heads_per_group * tiles_per_head);
  const int group = index / tiles_per_group, rest = index - group * tiles_per_group;
  const int heads_left = n_heads - group * heads_per_group;
  const int heads = heads_left < heads_per_group ? heads_left : heads_per_group;
  const int tile = rest / heads;
  return {tile, group * heads_per_group + rest - tile * heads};
}

}  // namespace flashsmith::sm90
