// The threads of the backward that add dQ of a block of queries, which a warpgroup has left in
// shared memory, to the sums in global memory.
#pragma once

#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/reduction.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/sm90/backward_clearer.cuh"
#include "flashsmith/sm90/backward_pipeline.cuh"
#include "flashsmith/sm90/key_tile.cuh"

namespace flashsmith::sm90 {

// The positions of an adding thread in the buffers of a warpgroup, across tiles.
struct AdderPosition {
  RingPosition<1> dQ, sums;
};

// The positions of an adding thread in the buffers of its warpgroups, every dQ_adders-th.
template <typename Traits>
using AdderPositions =
    AdderPosition[(Traits::n_warpgroups + Traits::dQ_adders - 1) / Traits::dQ_adders];

// Adds a warpgroup's dQ of a block of queries to the sums; or loads the sums back, if the warpgroup
// finishes dQ.
template <typename Traits>
class dQAdder {
  using Barriers = BackwardBarriers<Traits>;

  const Sm90BackwardKernelArgs &kernel_args_;
  const GradientArgs &args_;
  const KeyTile<Traits> &tile_;
  AdderPosition &position_;
  const int warpgroup_, part_;
  // The first block of queries that sees no keys before these, and the first that sees keys after
  // these.
  const int first_alone_, first_shared_;

 public:
  FLASHSMITH_DEVICE dQAdder(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile,
                            int warpgroup, AdderPosition &position)
      : kernel_args_(args),
        args_(args.gradient),
        tile_(tile),
        position_(position),
        warpgroup_(warpgroup),
        part_(Traits::shares_dQ ? warpgroup : 0),
        first_alone_(tile.first_alone(args.problem)),
        first_shared_(tile.first_shared(args.problem)) {}

  // Adds dQ of one of the next dQ_period steps, the one whose dQ the warpgroup computes.
  FLASHSMITH_DEVICE void add_from(int step) const {
    if constexpr (!Traits::shares_dQ) step += warpgroup_;
    if (step >= tile_.n_steps) return;
    const QueryVisit visit = tile_.visit_of(step);
    if constexpr (Traits::dQ_accumulation == DQAccumulation::ordered) {
      take_turn(visit);
    } else {
      if constexpr (Traits::converts_early) {
        if (is_first_of_head(visit)) {
          wait_until_cleared<Traits>(kernel_args_, tile_.sequence, tile_.rank(), visit.head);
        }
      }
      wait_for_dQ();
      ptx::bulk_add(sums(visit), place(), Traits::dQ_bytes);
      commit_and_free();
    }
  }

 private:
  // Returns whether the warpgroup computes no dQ of the head before this visit.
  FLASHSMITH_DEVICE bool is_first_of_head(const QueryVisit &visit) const {
    return visit.block + Traits::dQ_period >= tile_.end;
  }

  FLASHSMITH_DEVICE ptx::shared_address place() const {
    return ptx::shared_memory() + Traits::dQ_offset + warpgroup_ * Traits::dQ_bytes;
  }
  FLASHSMITH_DEVICE int in_workspace(const QueryVisit &visit) const {
    return tile_.first_block(args_) + visit.block;
  }
  FLASHSMITH_DEVICE float *sums(const QueryVisit &visit) const {
    return sums_of<Traits::d_head>(args_, in_workspace(visit), visit.head) +
           part_ * Traits::dQ_floats;
  }

  FLASHSMITH_DEVICE uint32_t *summed(const QueryVisit &visit) const {
    return summed_of<Traits::dQ_parts>(args_, in_workspace(visit), visit.head) + part_;
  }
  FLASHSMITH_DEVICE int n_before() const { return tile_.key / Traits::B_c; }  // blocks of keys

  FLASHSMITH_DEVICE void take_turn(const QueryVisit &visit) const {
    const bool first = visit.block >= first_alone_, last = visit.block < first_shared_;
    if (!last) {
      add_in_turn(visit, first);
    } else if (!first) {
      fetch(visit);
    }
  }

  // Adds the part when it is these keys' turn; the first block of keys stores it. The sum has to be
  // in memory before the next turn: it is not enough that the copy has read its source.
  FLASHSMITH_DEVICE void add_in_turn(const QueryVisit &visit, bool first) const {
    wait_for_dQ();
    if (first) {
      ptx::bulk_store(sums(visit), place(), Traits::dQ_bytes);
    } else {
      wait_for_turn(visit);
      ptx::bulk_add(sums(visit), place(), Traits::dQ_bytes);
    }
    commit_and_free();
    ptx::tma_store_wait_group<0>();
    ptx::release_global(summed(visit), n_before() + 1);
  }

  // Waits for the previous block of keys, which leaves its number.
  FLASHSMITH_DEVICE void wait_for_turn(const QueryVisit &visit) const {
    ptx::wait_global(summed(visit), n_before());
    ptx::fence_proxy_async_global();
  }

  FLASHSMITH_DEVICE void fetch(const QueryVisit &visit) const {
    const BufferBarriers barriers = Barriers::sums(warpgroup_);
    wait_for_turn(visit);
    ptx::mbarrier_wait_parity(barriers.empty, position_.sums.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::dQ_bytes);
    ptx::bulk_load(place(), sums(visit), Traits::dQ_bytes, barriers.full);
    position_.sums.advance();
  }

  FLASHSMITH_DEVICE void wait_for_dQ() const {
    ptx::mbarrier_wait_parity(Barriers::dQ(warpgroup_).full, position_.dQ.parity);
    position_.dQ.advance();
  }
  // Commits the copy, and frees the buffer once the copy has read it.
  FLASHSMITH_DEVICE void commit_and_free() const {
    ptx::tma_store_commit_group();
    ptx::tma_store_wait_group_read<0>();
    ptx::mbarrier_arrive(Barriers::dQ(warpgroup_).empty);
  }
};

// Adds dQ of a tile, as far as one of the adding threads does it.
template <typename Traits>
FLASHSMITH_DEVICE void add_dQ(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile,
                              int thread, AdderPositions<Traits> &positions) {
  constexpr bool kHasTwo = Traits::dQ_adders < Traits::n_warpgroups;
  const int second = thread + Traits::dQ_adders;  // warpgroup
  const dQAdder<Traits> of_first(args, tile, thread, positions[0]);
  const dQAdder<Traits> of_second(args, tile, second, positions[kHasTwo]);
#pragma unroll 1
  for (int step = 0; step < tile.n_steps; step += Traits::dQ_period) {
    of_first.add_from(step);
    if (kHasTwo && second < Traits::n_warpgroups) of_second.add_from(step);
  }
}

// Returns the counter of finished tiles of a head of K, or of a part of it.
template <typename Traits>
FLASHSMITH_DEVICE uint32_t *finished_of(const Sm90BackwardKernelArgs &args, int rank, int head_kv,
                                        int part) {
  const int head = rank * args.problem.n_heads_kv + head_kv;
  const int n_parts = Traits::splits_groups ? args.parts.n_parts : 1;
  return args.gradient.finished + head * n_parts + part;
}

// Counts a tile to whose queries one of the adding threads has added everything. The additions have
// to be in memory: it is not enough that the copies have read their sources.
template <typename Traits>
FLASHSMITH_DEVICE void finish_tile(const Sm90BackwardKernelArgs &args,
                                   const KeyTile<Traits> &tile) {
  if (tile.rank() * args.problem.n_heads + tile.first_head >= args.gradient.n_early) return;
  ptx::tma_store_wait_group<0>();
  ptx::thread_arrive_global(finished_of<Traits>(args, tile.rank(), tile.head_kv, tile.part));
}

}  // namespace flashsmith::sm90
