// The keys that a thread block of the backward works on, and the queries that see them.
#pragma once

#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm90/backward_traits.cuh"
#include "flashsmith/sm90/head_groups.cuh"

namespace flashsmith::sm90 {

// A block of keys of a head, by the order in which blocks start: blocks that causal masks show to
// the most queries come first. The blocks of a cluster are neighbours.
struct KeyBlock {
  int block, head_kv, batch;

  // per_head returns the number of blocks of the longest sequence, all the number over all
  // sequences and heads.
  template <typename Traits>
  static FLASHSMITH_DEVICE int per_head(const ProblemArgs &problem) {
    return clusters_per_head<Traits>(problem) * kCluster<Traits>;
  }
  template <typename Traits>
  static FLASHSMITH_DEVICE int all(const ProblemArgs &problem) {
    return per_head<Traits>(problem) * problem.n_heads_kv * ptx::recomputed(problem.batch);
  }

  template <typename Traits>
  static FLASHSMITH_DEVICE KeyBlock at(const Sm90BackwardKernelArgs &args, int index) {
    const ProblemArgs &problem = args.problem;
    const int n_heads_kv = ptx::recomputed(problem.n_heads_kv);
    const TileOfHead place =
        tile_in_groups(index / kCluster<Traits>, clusters_per_head<Traits>(problem),
                       n_heads_kv * problem.batch, args.heads_per_group);
    const int batch = place.head / n_heads_kv;
    return {place.tile * kCluster<Traits> + index % kCluster<Traits>,
            place.head - batch * n_heads_kv, batch};
  }

 private:
  template <typename Traits>
  static constexpr int kCluster = Traits::cluster_keys / Traits::B_c;

  template <typename Traits>
  static FLASHSMITH_DEVICE int clusters_per_head(const ProblemArgs &problem) {
    return (problem.seq_len_k + Traits::cluster_keys - 1) / Traits::cluster_keys;
  }
};

// The keys of a head from `key` on, and the blocks of queries, of each head that shares the keys,
// that see any key of the cluster.
template <typename Traits>
struct KeyTile {
  int key, head_kv, batch;
  typename Traits::Sequence sequence;
  int first_head, n_heads;               // of queries
  int begin = 0, end = 0, n_blocks = 0;  // blocks of queries of a head
  int n_steps = 0;                       // of all heads

  FLASHSMITH_DEVICE KeyTile(const ProblemArgs &problem, const KeyBlock &keys)
      : key(keys.block * Traits::B_c),
        head_kv(keys.head_kv),
        batch(keys.batch),
        sequence(problem, keys.batch),
        first_head(0),
        n_heads(problem.n_heads / problem.n_heads_kv) {
    first_head = head_kv * n_heads;
    const int first = first_key_of_cluster();
    const QueryRange range =
        queries_of_keys<Traits>(problem, sequence, first, first + Traits::cluster_keys);
    begin = range.begin / Traits::B_r;
    end = (range.end + Traits::B_r - 1) / Traits::B_r;
    n_blocks = end > begin ? end - begin : 0;
    n_steps = n_blocks * n_heads;
  }

  FLASHSMITH_DEVICE int first_key_of_cluster() const {
    return key / Traits::cluster_keys * Traits::cluster_keys;
  }

  // Returns the block of queries of a step. Blocks are visited from the last to the first: if
  // blocks of keys add to dQ in order, each follows the blocks of keys before it, which began
  // earlier.
  FLASHSMITH_DEVICE int visited(int step) const { return end - 1 - step; }

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

}  // namespace flashsmith::sm90
