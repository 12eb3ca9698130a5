// Which tile of the output a block works on next, and which blocks of K and V it visits.
#pragma once

#include "flashsmith/hopper/pipeline.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace flashsmith {

// The rows of one block of Q, in one head of one batch entry.
struct Tile {
  int Q_block, head, batch;
};

FLASHSMITH_DEVICE int n_tiles(const HopperForwardKernelArgs &args) {
  return args.n_Q_blocks * args.n_heads * args.batch;
}

// The tile at a place of the order. Head by head, Q blocks in order; or, longest first for causal,
// the last Q block of each head in a group, then the one before: K and V of a group stay in L2. A
// cluster's blocks are at neighbouring places, with Q blocks of one head side by side.
template <typename Kernel>
FLASHSMITH_DEVICE Tile tile_at(const HopperForwardKernelArgs &args, int place) {
  constexpr int kGroup = Kernel::config.heads_per_group, kCluster = Kernel::cluster_size;
  int Q_block, head;
  if constexpr (kGroup == 0) {
    head = place / args.n_Q_blocks;
    Q_block = place - head * args.n_Q_blocks;
  } else {
    const int tiles_per_group = kGroup * args.n_Q_blocks;
    const int group = place / tiles_per_group, rest = place - group * tiles_per_group;
    const int n_heads = args.n_heads * args.batch - group * kGroup;
    const int heads = n_heads < kGroup ? n_heads : kGroup;
    const int round = rest / (heads * kCluster), within = rest - round * heads * kCluster;
    Q_block = args.n_Q_blocks - (round + 1) * kCluster + within % kCluster;
    head = group * kGroup + within / kCluster;
  }
  const int batch = head / args.n_heads;
  return {Q_block, head - batch * args.n_heads, batch};
}

// One past the last row that the tile, or one side by side with it in the cluster, has.
template <typename Kernel>
FLASHSMITH_DEVICE int tile_row_end(const Tile &tile) {
  return (tile.Q_block / Kernel::cluster_size + 1) * Kernel::cluster_size * Kernel::B_r;
}

// Row i sees keys 0 to i + this.
FLASHSMITH_DEVICE int causal_offset(const HopperForwardKernelArgs &args) {
  return args.seq_len_k - args.seq_len_q;
}

// How many blocks of K and V the rows before `row_end` see; at least one, so that every tile is
// alike.
template <typename Kernel>
FLASHSMITH_DEVICE int n_KV_blocks(const HopperForwardKernelArgs &args, int row_end) {
  int keys = args.seq_len_k;
  if constexpr (Kernel::causal) {
    const int visible = row_end + causal_offset(args);
    keys = visible < keys ? visible : keys;
  }
  const int blocks = (keys + Kernel::B_c - 1) / Kernel::B_c;
  return blocks > 1 ? blocks : 1;
}

// How many of a tile's blocks, from the last on, the warpgroup with the 64 rows from `row` on
// leaves out, because none of its rows sees them. No more than the stages allow: while it waits for
// the block after them it has not yet released the last V of the tile before.
template <typename Kernel>
FLASHSMITH_DEVICE int n_skipped_blocks(const HopperForwardKernelArgs &args, int tile_blocks,
                                       int row) {
  if constexpr (!Kernel::causal) return 0;
  const int unseen = tile_blocks - n_KV_blocks<Kernel>(args, row + kWgmmaM);
  return unseen < Kernel::n_stages - 1 ? unseen : Kernel::n_stages - 1;
}

// The first of the blocks that the 64 rows from `row` on visit with a mask: it holds the last key
// that the first row sees, or keys beyond the sequence. Until a row has seen a key its R is -inf,
// which only a masked step knows, so the block is among them even if all rows see all of it.
template <typename Kernel>
FLASHSMITH_DEVICE int first_masked_block(const HopperForwardKernelArgs &args, int row) {
  int keys = args.seq_len_k;
  if constexpr (Kernel::causal) {
    const int last_visible = row + causal_offset(args);
    keys = last_visible < keys ? last_visible : keys;
  }
  return keys > 0 ? keys / Kernel::B_c : 0;
}

// The places of a block's tiles, as its producer draws them. From a queue, all warps learn of them
// through two entries in shared memory.
template <typename Kernel>
class TileProducer {
  const HopperForwardKernelArgs &args_;
  RingPosition<kQueueEntries> entry_;
  int place_ = ptx::block_index_x();

 public:
  FLASHSMITH_DEVICE explicit TileProducer(const HopperForwardKernelArgs &args) : args_(args) {}

  // The place to work on, which may lie beyond the last: then there is no further.
  FLASHSMITH_DEVICE int place() const { return place_; }

  // Tells the consumers the place.
  FLASHSMITH_DEVICE void announce() {
    if constexpr (!Kernel::config.dynamic_queue) return;
    ptx::thread_store_shared_4(
        ptx::shared_memory() + Kernel::queue_offset + entry_.buffer * sizeof(uint32_t), place_);
    ptx::mbarrier_arrive(Barriers<Kernel>::queue(entry_.buffer));
    entry_.advance();
  }

  // The place after this. Early: a draw takes as long as a load from global memory.
  FLASHSMITH_DEVICE int draw() const {
    const int n_blocks = ptx::grid_size_x();
    if constexpr (Kernel::config.dynamic_queue) {
      return n_blocks + static_cast<int>(ptx::thread_atomic_add(args_.queue, 1));
    }
    return Kernel::config.persistent ? place_ + n_blocks : n_tiles(args_);
  }
  FLASHSMITH_DEVICE void advance(int drawn) { place_ = drawn; }

  // The last block to get here leaves the queue as it was found.
  FLASHSMITH_DEVICE void finish() const {
    if constexpr (!Kernel::config.dynamic_queue) return;
    const uint32_t n_blocks = ptx::grid_size_x();
    if (ptx::thread_atomic_add(args_.queue + 1, 1) != n_blocks - 1) return;
    ptx::thread_store_global_4(args_.queue, 0);
    ptx::thread_store_global_4(args_.queue + 1, 0);
  }
};

// The same places, as a consumer warp learns of them.
template <typename Kernel>
class TileConsumer {
  const HopperForwardKernelArgs &args_;
  RingPosition<kQueueEntries> entry_;
  int place_ = ptx::block_index_x();

 public:
  FLASHSMITH_DEVICE explicit TileConsumer(const HopperForwardKernelArgs &args) : args_(args) {}

  // The next place; one beyond the last is the end.
  FLASHSMITH_DEVICE int next() {
    if constexpr (!Kernel::config.dynamic_queue) {
      const int place = place_;
      place_ = Kernel::config.persistent ? place_ + ptx::grid_size_x() : n_tiles(args_);
      return place;
    }
    ptx::mbarrier_wait_parity(Barriers<Kernel>::queue(entry_.buffer), entry_.parity);
    const int place = static_cast<int>(ptx::load_shared_4(
        ptx::shared_memory() + Kernel::queue_offset + entry_.buffer * sizeof(uint32_t)));
    // One lane will free Q's buffer, and with it the entry: all lanes must have read that. With
    // ping-pong they meet at the turn before.
    if constexpr (!Kernel::config.ping_pong) ptx::warp_sync();
    entry_.advance();
    return place;
  }
};

}  // namespace flashsmith
