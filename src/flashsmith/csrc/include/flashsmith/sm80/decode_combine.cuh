// Combines the partial results of a block's teams, and of a work tile's splits, to rows of O. The
// last split to arrive combines a few splits; a separate kernel combines many
// (attention/combine_kernel.cuh).
#pragma once

#include "flashsmith/attention/partial_results.cuh"
#include "flashsmith/attention/split_tiles.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/sm80/decode_traits.cuh"

namespace flashsmith::sm80 {

// All threads of the block take part, each with a chunk of a row at a time.
template <typename Traits>
class DecodeCombine {
  static constexpr int kRowChunks = Traits::d_head / kPartialChunk;
  static constexpr int kTeamsAtOnce = Traits::n_teams < 4 ? Traits::n_teams : 4;
  static_assert(Traits::n_threads * kThreadPartialBytes <= Traits::n_teams * Traits::ring_bytes,
                "the rings have room for the sums of all threads");

  const DecodeKernelArgs &args_;
  const KeySplit &split_;
  const PartialResults<Traits> sums_;
  const ptx::shared_address shared_ = ptx::shared_memory();

 public:
  FLASHSMITH_DEVICE DecodeCombine(const DecodeKernelArgs &args, const KeySplit &split)
      : args_(args), split_(split), sums_(args.problem, split) {}

  // Reads the teams' partial results from the rings, which are free afterwards.
  FLASHSMITH_DEVICE void run() const {
    ptx::barrier_sync();
    if (ptx::thread_index() == 0) SplitTiles(args_.problem.split).add(split_);
    if (split_.count == 1) {
      for_each_chunk([&](int row, int chunk) { store(of_teams(row, chunk), row, chunk); });
      ptx::barrier_sync();
      return;
    }
    for_each_chunk(
        [&](int row, int chunk) { sums_.store_partial(of_teams(row, chunk), row, chunk); });
    // Where another kernel combines, blocks have one split each.
    if (args_.problem.split.split_tiles == nullptr && is_last()) combine_splits();
  }

 private:
  // Returns the number of chunks in the existing rows, rounded up to whole warps: some lanes of the
  // last warp may be beyond them.
  FLASHSMITH_DEVICE int n_chunks() const {
    return (sums_.rows().count() * kRowChunks + kWarpSize - 1) / kWarpSize * kWarpSize;
  }
  template <typename Do>
  FLASHSMITH_DEVICE void for_each_chunk(Do do_it) const {
    for (int i = ptx::thread_index(); i < n_chunks(); i += Traits::n_threads) {
      do_it(i / kRowChunks, i % kRowChunks);
    }
  }

  // Combines the splits of each chunk, with all threads that there are for a chunk.
  FLASHSMITH_DEVICE void combine_splits() const {
    const int n = n_chunks(), groups = n < Traits::n_threads ? Traits::n_threads / n : 1;
    if (groups == 1) {
      for_each_chunk([&](int row, int chunk) { store(of_splits(row, chunk, 0, 1), row, chunk); });
      return;
    }
    const int group = ptx::thread_index() / n, i = ptx::thread_index() % n;
    const int row = i / kRowChunks, chunk = i % kRowChunks;
    const ThreadPartials shared(shared_);
    if (group < groups) shared.put(ptx::thread_index(), of_splits(row, chunk, group, groups));
    ptx::barrier_sync();
    if (group == 0) store(shared.of_groups(i, n, groups), row, chunk);
    ptx::barrier_sync();
  }

  FLASHSMITH_DEVICE PartialResult of_teams(int row, int chunk) const {
    const auto load = [&](int team) {
      const ptx::shared_address ring = shared_ + team * Traits::ring_bytes;
      return ThreadPartials::load(
          ring + row * Traits::sum_row_bytes + chunk * kPartialChunk * sizeof(float),
          ring + Traits::stats_offset + row * kStatsPerRow * sizeof(float));
    };
    return combine_partials<kTeamsAtOnce>(0, Traits::n_teams, 1, load);
  }

  FLASHSMITH_DEVICE PartialResult of_splits(int row, int chunk, int first, int step) const {
    return sums_.template combined<Traits::splits_at_once>(row, chunk, first, step);
  }

  // Returns whether all other splits of the work tile have stored their partial results, too.
  FLASHSMITH_DEVICE bool is_last() const {
    const ptx::shared_address arrived = shared_ + Traits::arrived_offset;
    ptx::barrier_sync();  // order in global memory: all partial results, then the arrival
    if (ptx::thread_index() == 0) {
      uint32_t *arrivals = args_.problem.split.arrivals + split_.tile;
      ptx::thread_store_shared_4(arrived, arrive_last(arrivals, split_.count));
    }
    ptx::barrier_sync();
    return ptx::load_shared_4(arrived) != 0;
  }

  FLASHSMITH_DEVICE void store(const PartialResult &sums, int row, int chunk) const {
    sums_.store(sums, row, chunk, value_scale<Traits>(args_, split_));
  }
};

}  // namespace flashsmith::sm80
