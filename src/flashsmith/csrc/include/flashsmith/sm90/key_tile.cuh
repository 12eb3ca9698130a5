// Which keys a thread block of the backward works on, and for which queries.
#pragma once

#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm90/backward_traits.cuh"

namespace flashsmith::sm90 {

// A block of keys of a head, by the order in which blocks start: all of a group of heads, the first
// keys of each, which causal masks show to the most queries, then the next ones; then the next
// group. What a group reads and adds up stays in L2.
struct KeyBlock {
  int block, head_kv, batch;

  // Blocks of the longest sequence, and of all sequences and heads.
  template <typename Traits>
  static FLASHSMITH_DEVICE int per_head(const ProblemArgs &problem) {
    return (problem.seq_len_k + Traits::B_c - 1) / Traits::B_c;
  }
  template <typename Traits>
  static FLASHSMITH_DEVICE int all(const ProblemArgs &problem) {
    return per_head<Traits>(problem) * problem.n_heads_kv * ptx::recomputed(problem.batch);
  }

  template <typename Traits>
  static FLASHSMITH_DEVICE KeyBlock at(const Sm90BackwardKernelArgs &args, int index) {
    const ProblemArgs &problem = args.problem;
    // From tile to tile nothing of the divisions stays in a register.
    const int n_heads_kv = ptx::recomputed(problem.n_heads_kv);
    const int n_blocks = per_head<Traits>(problem);
    const int blocks_per_group = ptx::recomputed(args.heads_per_group * n_blocks);
    const int group = index / blocks_per_group, rest = index - group * blocks_per_group;
    const int heads_left = n_heads_kv * problem.batch - group * args.heads_per_group;
    const int n_heads = heads_left < args.heads_per_group ? heads_left : args.heads_per_group;
    const int block = rest / n_heads;
    const int head = group * args.heads_per_group + rest - block * n_heads;
    const int batch = head / n_heads_kv;
    return {block, head - batch * n_heads_kv, batch};
  }
};

// The keys of a head from `key` on, and the blocks of queries that see any of them, or of those of
// the cluster, of each head that shares the keys.
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

  // Of the first block of queries among the workspace's.
  FLASHSMITH_DEVICE int first_block(const GradientArgs &gradient) const {
    return first_statistics_block(gradient, sequence, batch);
  }
};

}  // namespace flashsmith::sm90
