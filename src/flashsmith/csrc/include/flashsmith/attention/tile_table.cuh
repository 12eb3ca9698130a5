// The tile table of varlen sequences. The longest sequences come first, which leaves short tiles
// for the end; the tiles of a sequence are in descending order, because the last ones see the most
// keys if the mask is causal. A separate launch makes the table, so that no block looks for work
// where there is none. If there are few tiles, each block finds its own, because that launch would
// cost more than the work.
//
//    number of entries | unused | cluster, sequence | cluster, sequence | ...     (words)
//
// A cluster is a cluster of Q blocks.
#pragma once

#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/ptx/shuffle.cuh"

namespace flashsmith {

constexpr int kScheduleWarps = 8;  // warps of a block, each of which lists one sequence

struct TileTable {
  static constexpr int kHeaderWords = 2, kEntryWords = 2;
  struct Entry {
    int cluster, batch;
  };

  uint32_t *words;  // null: no launch made it

  FLASHSMITH_DEVICE bool is_made() const { return words != nullptr; }
  FLASHSMITH_DEVICE int size() const { return word(0); }
  FLASHSMITH_DEVICE Entry operator[](int i) const {
    return {word(kHeaderWords + i * kEntryWords), word(kHeaderWords + i * kEntryWords + 1)};
  }
  FLASHSMITH_DEVICE void set_size(int n) const { ptx::thread_store_global_4(words, n); }
  FLASHSMITH_DEVICE void set(int i, const Entry &entry) const {
    uint32_t *place = words + kHeaderWords + i * kEntryWords;
    ptx::thread_store_global_4(place, entry.cluster);
    ptx::thread_store_global_4(place + 1, entry.batch);
  }

 private:
  FLASHSMITH_DEVICE int word(int i) const {
    return static_cast<int>(ptx::thread_load_global(words + i));
  }
};

// Returns the number of heads that have tiles of their own: of queries, or of keys if a tile has
// the rows of all query heads that share one.
template <typename Traits>
FLASHSMITH_DEVICE int heads_of_tiles(const ProblemArgs &problem) {
  return Traits::packed_heads ? problem.n_heads_kv : problem.n_heads;
}

// Returns the number of queries of a cluster of tiles.
template <typename Traits>
FLASHSMITH_DEVICE int cluster_queries(const ProblemArgs &problem) {
  if constexpr (Traits::packed_heads) {
    constexpr int kRows = Traits::B_r / Traits::n_warpgroups;
    const int queries = kRows / (problem.n_heads / problem.n_heads_kv);
    return Traits::n_warpgroups * queries * Traits::cluster_size;
  } else {
    return Traits::B_r * Traits::cluster_size;
  }
}

template <typename Traits>
FLASHSMITH_DEVICE int n_entries(const ProblemArgs &problem,
                                const typename Traits::Sequence &sequence) {
  const int rows = cluster_queries<Traits>(problem);
  return (sequence.seq_len_q() + rows - 1) / rows;
}

// Lists the tiles of a sequence, behind those of longer ones, and resets the queue. If lengths add
// up to more tiles than the caller promised, those without room are left out.
template <typename Traits>
FLASHSMITH_DEVICE void list_tiles(const ProblemArgs &problem, int batch) {
  const TileTable table{problem.tiles};
  const typename Traits::Sequence own(problem, batch);
  const int lane = ptx::thread_index() % kWarpSize;
  int before = 0, total = 0;
  for (int other = lane; other < problem.batch; other += kWarpSize) {
    const typename Traits::Sequence sequence(problem, other);
    const int longer = sequence.seq_len_k() - own.seq_len_k(),
              n = n_entries<Traits>(problem, sequence);
    if (longer > 0 || (longer == 0 && other < batch)) before += n;
    total += n;
  }
  before = ptx::sum_of_lanes(before);
  total = ptx::sum_of_lanes(total);
  const int n = n_entries<Traits>(problem, own), room = problem.n_Q_blocks;
  for (int i = lane; i < n && i < room - before; i += kWarpSize) {
    table.set(before + i, {n - 1 - i, batch});
  }
  if (batch > 0 || lane > 0) return;
  table.set_size(total < room ? total : room);
  if (problem.queue == nullptr) return;
  ptx::thread_store_global_4(problem.queue, 0);
  ptx::thread_store_global_4(problem.queue + 1, 0);
}

// Finds the entry that a table of up to kWarpSize sequences would have at an index, without memory:
// each lane has one sequence, and all lanes call this. Returns cluster kNoCluster if there are
// fewer entries.
constexpr int kNoCluster = -1;

template <typename Traits>
FLASHSMITH_DEVICE TileTable::Entry find_entry(const ProblemArgs &problem, int index) {
  const int lane = ptx::thread_index() % kWarpSize;
  const bool has_sequence = lane < problem.batch;
  const typename Traits::Sequence own(problem, has_sequence ? lane : 0);
  const int n = has_sequence ? n_entries<Traits>(problem, own) : 0, length = own.seq_len_k();
  int before = 0;
  for (int other = 0; other < problem.batch; other++) {
    const int longer = ptx::shuffle_from(length, other) - length;
    const int n_of_other = ptx::shuffle_from(n, other);
    if (longer > 0 || (longer == 0 && other < lane)) before += n_of_other;
  }
  const bool is_own = before <= index && index < before + n;
  const int cluster = is_own ? n - 1 - (index - before) : kNoCluster;
  return {ptx::max_of_lanes(cluster), ptx::max_of_lanes(is_own ? lane : 0)};
}

// Grid: a block for every kScheduleWarps sequences. Block: kScheduleWarps warps.
template <typename Traits, typename Args>
__global__ void __launch_bounds__(kScheduleWarps *kWarpSize)
    schedule_kernel(const __grid_constant__ Args args) {
  const int batch = ptx::block_index_x() * kScheduleWarps + ptx::thread_index() / kWarpSize;
  if (batch < args.problem.batch) list_tiles<Traits>(args.problem, batch);
}

}  // namespace flashsmith
