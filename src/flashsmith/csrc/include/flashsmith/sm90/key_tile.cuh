// The keys that a thread block of the backward works on, and the queries that see them.
#pragma once

#include "flashsmith/attention/key_tile_table.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm90/backward_traits.cuh"
#include "flashsmith/sm90/head_groups.cuh"

namespace flashsmith::sm90 {

// A block of keys of a head, by the order in which blocks start: blocks that causal masks show to
// the most queries come first. The blocks of a cluster are neighbours. If groups are split, each
// part of a group has all blocks of its head, as if it were a head by itself.
struct KeyBlock {
  int block, head_kv, batch;
  int part;  // of the query heads that share the keys
  int rank;  // of the sequence, see key_tile_table.cuh

  // per_head returns the number of blocks of the longest sequence, all the number over all
  // sequences, heads and parts.
  template <typename Traits>
  static FLASHSMITH_DEVICE int per_head(const ProblemArgs &problem) {
    return clusters_per_head<Traits>(problem) * kCluster<Traits>;
  }
  template <typename Traits>
  static FLASHSMITH_DEVICE int all(const Sm90BackwardKernelArgs &args) {
    const ProblemArgs &problem = args.problem;
    const int blocks =
        per_head<Traits>(problem) * problem.n_heads_kv * ptx::recomputed(problem.batch);
    if constexpr (Traits::splits_groups) return blocks * args.parts.n_parts;
    return blocks;
  }

  // Returns the block at an index below `all`.
  template <typename Traits>
  static FLASHSMITH_DEVICE KeyBlock at(const Sm90BackwardKernelArgs &args, int index) {
    const ProblemArgs &problem = args.problem;
    const int n_heads_kv = ptx::recomputed(problem.n_heads_kv);
    const int n_parts = Traits::splits_groups ? ptx::recomputed(args.parts.n_parts) : 1;
    const TileOfHead place =
        tile_in_groups(index / kCluster<Traits>, clusters_per_head<Traits>(problem),
                       n_heads_kv * problem.batch * n_parts, args.heads_per_group);
    const int head = place.head / n_parts;  // of all batch entries
    const int batch = head / n_heads_kv;
    return {place.tile * kCluster<Traits> + index % kCluster<Traits>, head - batch * n_heads_kv,
            batch, place.head - head * n_parts, batch};
  }

  // Returns the block at an index, of a table if there is one, or the end.
  template <typename Traits>
  static FLASHSMITH_DEVICE KeyBlock find(const Sm90BackwardKernelArgs &args, int index) {
    const KeyTileTable table(args.problem);
    if (table.is_made()) {
      const int n_tiles = table.size() * heads_of_tiles<Traits>(args);
      return index < n_tiles ? in_table<Traits>(args, index) : end();
    }
    return index < all<Traits>(args) ? at<Traits>(args, index) : end();
  }

  // Stands for no block behind the last one.
  static FLASHSMITH_DEVICE KeyBlock end() { return {.block = -1}; }
  FLASHSMITH_DEVICE bool is_end() const { return block < 0; }

 private:
  template <typename Traits>
  static constexpr int kCluster = Traits::cluster_keys / Traits::B_c;

  template <typename Traits>
  static FLASHSMITH_DEVICE int clusters_per_head(const ProblemArgs &problem) {
    return (problem.seq_len_k + Traits::cluster_keys - 1) / Traits::cluster_keys;
  }

  // Returns the heads of K of a sequence that have tiles of their own, or the parts of these.
  template <typename Traits>
  static FLASHSMITH_DEVICE int heads_of_tiles(const Sm90BackwardKernelArgs &args) {
    const int n_heads_kv = ptx::recomputed(args.problem.n_heads_kv);
    if constexpr (Traits::splits_groups) return n_heads_kv * args.parts.n_parts;
    return n_heads_kv;
  }

  // Returns the block at an index of a table. The tiles of a sequence come in groups of its heads,
  // so many that they fill the GPU.
  template <typename Traits>
  static FLASHSMITH_DEVICE KeyBlock in_table(const Sm90BackwardKernelArgs &args, int index) {
    const int n_heads = heads_of_tiles<Traits>(args), i = index / n_heads;
    const KeyTileTable::Entry entry = KeyTileTable(args.problem)[i];
    const int fill = (ptx::recomputed(args.tiles_per_group) + entry.n_tiles - 1) / entry.n_tiles;
    const int groups = n_heads / (fill > kMinHeads<Traits> ? fill : kMinHeads<Traits>);
    const int heads_per_group = groups > 1 ? (n_heads + groups - 1) / groups : n_heads;
    const TileOfHead place = tile_in_groups(entry.number * n_heads + index - i * n_heads,
                                            entry.n_tiles, n_heads, heads_per_group);
    const int n_parts = Traits::splits_groups ? ptx::recomputed(args.parts.n_parts) : 1;
    const int head = place.head / n_parts;
    return {place.tile, head, entry.batch, place.head - head * n_parts, entry.rank};
  }

  // The min number of heads whose tiles start together. If blocks of keys add to dQ in order, those
  // of a head wait for each other less, the more heads there are.
  template <typename Traits>
  static constexpr int kMinHeads = Traits::dQ_accumulation == DQAccumulation::ordered ? 8 : 1;
};

// A block of queries of a head, while a tile of keys visits it.
struct QueryVisit {
  int block, head;
};

// The keys of a head from `key` on, and the blocks of queries, of each head that shares the keys
// and belongs to the part, that see any key of the cluster.
template <typename Traits>
struct KeyTile {
  int key, head_kv, batch, part, rank_;
  typename Traits::Sequence sequence;
  int first_head, n_heads;  // of queries
  int begin = 0, end = 0;   // blocks of queries of a head
  int n_steps = 0;          // of all heads
  static constexpr bool kInOrder = Traits::dQ_accumulation == DQAccumulation::ordered;

  FLASHSMITH_DEVICE KeyTile(const Sm90BackwardKernelArgs &args, const KeyBlock &keys)
      : key(keys.block * Traits::B_c),
        head_kv(keys.head_kv),
        batch(keys.batch),
        part(keys.part),
        rank_(keys.rank),
        sequence(args.problem, keys.batch),
        first_head(0),
        n_heads(args.problem.n_heads / args.problem.n_heads_kv) {
    const ProblemArgs &problem = args.problem;
    first_head = head_kv * n_heads;
    if constexpr (Traits::splits_groups) take_part(args.parts.heads_per_part);
    const int first = first_key_of_cluster();
    const QueryRange range =
        queries_of_keys<Traits>(problem, sequence, first, first + Traits::cluster_keys);
    begin = range.begin / Traits::B_r;
    end = (range.end + Traits::B_r - 1) / Traits::B_r;
    n_steps = end > begin ? (end - begin) * n_heads : 0;
  }

  // Returns the rank of the sequence, which without a table is its index.
  FLASHSMITH_DEVICE int rank() const { return Traits::has_key_table ? rank_ : batch; }

  FLASHSMITH_DEVICE int first_key_of_cluster() const {
    return key / Traits::cluster_keys * Traits::cluster_keys;
  }

  // Leaves out the query heads of the other parts. The last part may have fewer heads.
  FLASHSMITH_DEVICE void take_part(int heads_per_part) {
    const int before = part * heads_per_part, left = n_heads - before;
    first_head += before;
    n_heads = left < heads_per_part ? left : heads_per_part;
  }

  // The following functions return the visits of the tile. Blocks of queries are visited from the
  // last to the first. If blocks of keys add to dQ in order, each is visited for all heads before
  // the next: tiles that start together then visit the same queries at the same time, whatever the
  // number of their blocks, and none waits long for those before it. If they add in any order, a
  // head is visited to its end before the next, so that L2 has to keep the data of fewer heads.
  FLASHSMITH_DEVICE QueryVisit first_visit() const { return {end - 1, first_head}; }
  FLASHSMITH_DEVICE QueryVisit visit_of(int step) const {
    const int of_round = kInOrder ? n_heads : end - begin;
    const int round = step / of_round, rest = step - round * of_round;
    const int block = kInOrder ? round : rest, head = kInOrder ? rest : round;
    return {end - 1 - block, first_head + head};
  }
  FLASHSMITH_DEVICE QueryVisit after(const QueryVisit &visit) const {
    if constexpr (kInOrder) {
      if (visit.head + 1 < first_head + n_heads) return {visit.block, visit.head + 1};
      return {visit.block - 1, first_head};
    }
    if (visit.block > begin) return {visit.block - 1, visit.head};
    return {end - 1, visit.head + 1};
  }
  FLASHSMITH_DEVICE QueryVisit before(const QueryVisit &visit) const {  // in order
    if (visit.head > first_head) return {visit.block, visit.head - 1};
    return {visit.block + 1, first_head + n_heads - 1};
  }

  // Returns the first block of queries from which on no keys before these are seen.
  FLASHSMITH_DEVICE int first_alone(const ProblemArgs &problem) const {
    if (key == 0) return begin;
    const QueryRange before = queries_of_keys<Traits>(problem, sequence, key - Traits::B_c, key);
    return (before.end + Traits::B_r - 1) / Traits::B_r;
  }

  // Returns the first block of queries that sees keys after these.
  FLASHSMITH_DEVICE int first_shared(const ProblemArgs &problem) const {
    const int next = key + Traits::B_c;
    if (next >= sequence.seq_len_k()) return end;
    return queries_of_keys<Traits>(problem, sequence, next, next + Traits::B_c).begin / Traits::B_r;
  }

  // Returns the index of the first block of queries in the workspace.
  FLASHSMITH_DEVICE int first_block(const GradientArgs &gradient) const {
    return first_statistics_block(gradient, sequence, batch);
  }
};

// Returns the number of tiles of each head of a sequence that are worked on.
template <typename Traits>
FLASHSMITH_DEVICE int tiles_of_sequence(const ProblemArgs &problem,
                                        const typename Traits::Sequence &sequence, int rank) {
  const int n_tiles = (sequence.seq_len_k() + Traits::B_c - 1) / Traits::B_c;
  if constexpr (Traits::has_key_table) {
    const KeyTileTable table(problem);
    if (table.is_made()) return table.n_tiles_at(rank);
    const int launched = KeyBlock::per_head<Traits>(problem);
    return n_tiles < launched ? n_tiles : launched;
  }
  return n_tiles;
}

}  // namespace flashsmith::sm90
