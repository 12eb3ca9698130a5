// The table of the key tiles of varlen sequences, from which the thread blocks of a backward draw.
// Sequences with the most queries come first, which leaves short tiles for the end, and no block
// looks for keys where there are none. The first launch of a call makes the table.
//
//    entries | their number | rank of each sequence | sequence and number of tiles of each rank
//
// An entry of kEntryWords words is a tile of all heads; those of a sequence are side by side. The
// rank of a sequence is its place in the order.
#pragma once

#include "flashsmith/attention/tile_table.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/ptx/global_exchange.cuh"
#include "flashsmith/ptx/shuffle.cuh"

namespace flashsmith {

class KeyTileTable {
  static constexpr int kEntryWords = 4;

  uint32_t *words_, *ranks_, *sequences_;
  int room_;

  static FLASHSMITH_DEVICE int load(const uint32_t *word) {
    return static_cast<int>(ptx::thread_load_global_cg_4(word));
  }

 public:
  // Tile `number` of the `n_tiles` of a sequence.
  struct Entry {
    int number, n_tiles, batch, rank;
  };

  explicit FLASHSMITH_DEVICE KeyTileTable(const ProblemArgs &problem)
      : words_(problem.tiles),
        ranks_(problem.tiles + problem.n_Q_blocks * kEntryWords + 1),
        sequences_(ranks_ + problem.batch),
        room_(problem.n_Q_blocks) {}

  // Returns whether a launch made the table.
  FLASHSMITH_DEVICE bool is_made() const { return words_ != nullptr; }
  // Returns the max number of entries, and the number of those that there are.
  FLASHSMITH_DEVICE int room() const { return room_; }
  FLASHSMITH_DEVICE int size() const { return load(words_ + room_ * kEntryWords); }
  FLASHSMITH_DEVICE Entry operator[](int i) const {
    const ptx::Chunk found = ptx::thread_load_global_cg_16(words_ + i * kEntryWords);
    const auto number = [&](int word) { return static_cast<int>(found.word[word]); };
    return {number(0), number(1), number(2), number(3)};
  }
  FLASHSMITH_DEVICE int rank_of(int batch) const { return load(ranks_ + batch); }
  FLASHSMITH_DEVICE int batch_at(int rank) const { return load(sequences_ + 2 * rank); }
  FLASHSMITH_DEVICE int n_tiles_at(int rank) const { return load(sequences_ + 2 * rank + 1); }

  FLASHSMITH_DEVICE void set_size(int n) const {
    ptx::thread_store_global_4(words_ + room_ * kEntryWords, n);
  }
  FLASHSMITH_DEVICE void set_sequence(int batch, int rank, int n_tiles) const {
    ptx::thread_store_global_4(ranks_ + batch, rank);
    ptx::thread_store_global_4(sequences_ + 2 * rank, batch);
    ptx::thread_store_global_4(sequences_ + 2 * rank + 1, n_tiles);
  }
  FLASHSMITH_DEVICE void set(int i, const Entry &entry) const {
    const auto word = [](int number) { return static_cast<uint32_t>(number); };
    ptx::thread_store_global_16(words_ + i * kEntryWords, {word(entry.number), word(entry.n_tiles),
                                                           word(entry.batch), word(entry.rank)});
  }
};

// The following functions return the rank of a sequence, and the sequence of a rank. Without a
// table sequences are worked on as they come.
template <typename Traits>
FLASHSMITH_DEVICE int rank_of(const ProblemArgs &problem, int batch) {
  if constexpr (Traits::Sequence::kVarlen) {
    const KeyTileTable table(problem);
    if (table.is_made()) return table.rank_of(batch);
  }
  return batch;
}
template <typename Traits>
FLASHSMITH_DEVICE int batch_at(const ProblemArgs &problem, int rank) {
  if constexpr (Traits::Sequence::kVarlen) {
    const KeyTileTable table(problem);
    if (table.is_made()) return table.batch_at(rank);
  }
  return rank;
}

// Lists the tiles of a sequence, behind those of sequences with more queries. If sequences overlap
// in the tensors, so that there are more tiles than rows allow, those without room are left out.
template <typename Traits>
FLASHSMITH_DEVICE void list_key_tiles(const ProblemArgs &problem, int batch) {
  const KeyTileTable table(problem);
  const auto tiles_of = [](const typename Traits::Sequence &sequence) {
    return (sequence.seq_len_k() + Traits::B_c - 1) / Traits::B_c;
  };
  const typename Traits::Sequence own(problem, batch);
  const int lane = ptx::thread_index() % kWarpSize, room = table.room();
  int rank = 0, before = 0, total = 0;
  for (int other = lane; other < problem.batch; other += kWarpSize) {
    const typename Traits::Sequence sequence(problem, other);
    const int longer = sequence.seq_len_q() - own.seq_len_q(), n = tiles_of(sequence);
    if (longer > 0 || (longer == 0 && other < batch)) {
      rank++;
      before += n;
    }
    total += n;
  }
  rank = ptx::sum_of_lanes(rank);
  before = ptx::sum_of_lanes(before);
  total = ptx::sum_of_lanes(total);
  const int left = before < room ? room - before : 0, all = tiles_of(own);
  const int n = all < left ? all : left;
  for (int i = lane; i < n; i += kWarpSize) table.set(before + i, {i, n, batch, rank});
  if (lane > 0) return;
  table.set_sequence(batch, rank, n);
  if (batch == 0) table.set_size(total < room ? total : room);
}

// Grid: a block for every kScheduleWarps sequences. Block: kScheduleWarps warps.
template <typename Traits, typename Args>
__global__ void __launch_bounds__(kScheduleWarps *kWarpSize)
    key_tile_table_kernel(const __grid_constant__ Args args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  const int batch = ptx::block_index_x() * kScheduleWarps + ptx::thread_index() / kWarpSize;
  if (batch < args.problem.batch) list_key_tiles<Traits>(args.problem, batch);
}

}  // namespace flashsmith
