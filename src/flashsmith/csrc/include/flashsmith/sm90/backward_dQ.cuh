// Moves the dQ of a block of queries out of a warpgroup: to shared memory, from where it is added
// to the dQ of other keys. If blocks of keys add in order, the last one adds the sums of the others
// to its part, and writes the result.
#pragma once

#include "flashsmith/attention/dQ_sums.cuh"
#include "flashsmith/sm90/backward_epilogue.cuh"
#include "flashsmith/sm90/backward_pipeline.cuh"
#include "flashsmith/sm90/backward_staging.cuh"
#include "flashsmith/sm90/key_tile.cuh"

namespace flashsmith::sm90 {

// The positions of a warpgroup in its rings, across tiles. Their parities share a register.
template <typename Traits>
class ConsumerPosition {
  unsigned parities_ = 0;

 public:
  enum Ring { ring_of_Q, ring_of_dO, ring_of_keys, ring_of_dQ, ring_of_sums };

  int Q = 0, dO = 0;  // stages
  unsigned step = 0;  // blocks of queries so far, over all heads and tiles

  FLASHSMITH_DEVICE int parity(Ring ring) const { return parities_ >> ring & 1; }
  FLASHSMITH_DEVICE void begin_round(Ring ring) { parities_ ^= 1u << ring; }

  FLASHSMITH_DEVICE void advance() {
    if (++Q == Traits::Q_stages) {
      Q = 0;
      begin_round(ring_of_Q);
    }
    if (++dO == Traits::dO_stages) {
      dO = 0;
      begin_round(ring_of_dO);
    }
    step++;
  }
};

// The part of the previous block's dQ that a warpgroup computes: none, a part that is added to the
// sums, or the rest, which finishes dQ.
enum class dQShare { none, part, rest };

template <typename Traits>
class dQOutput {
  using Barriers = BackwardBarriers<Traits>;
  using Position = ConsumerPosition<Traits>;

  const Sm90BackwardKernelArgs &args_;
  const KeyTile<Traits> &tile_;
  const int warpgroup_;
  Position &position_;

 public:
  FLASHSMITH_DEVICE dQOutput(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile,
                             int warpgroup, Position &position)
      : args_(args), tile_(tile), warpgroup_(warpgroup), position_(position) {}

  // Stores a part in shared memory, from where it is added to the sums once it is published.
  FLASHSMITH_DEVICE void store(dQAccumulator<Traits> &dQ) const {
    stage(dQ);
    publish_staged();
  }
  FLASHSMITH_DEVICE void stage(dQAccumulator<Traits> &dQ) const {
    ptx::pin_registers(dQ);
    ptx::mbarrier_wait_parity(Barriers::dQ(warpgroup_).empty,
                              position_.parity(Position::ring_of_dQ) ^ 1);
    position_.begin_round(Position::ring_of_dQ);
    stage_dQ<Traits>(place(), dQ);
  }
  FLASHSMITH_DEVICE void publish_staged() const { publish(Barriers::dQ(warpgroup_).full); }

  // Finishes dQ of a head and a block with the rest.
  FLASHSMITH_DEVICE void finish(dQAccumulator<Traits> &dQ, int head, int block) const {
    ptx::pin_registers(dQ);
    if (block < tile_.first_alone(args_.problem)) add_sums(dQ);
    const int row = block * Traits::B_r + warpgroup_warp() * kWarpRows;
    store_fragment<Traits>(dQ_rows<Traits>(args_, tile_.sequence, head, row), dQ,
                           args_.gradient.softmax_scale,
                           Traits::shares_dQ ? warpgroup_ * Traits::dQ_columns : 0);
  }

 private:
  FLASHSMITH_DEVICE ptx::shared_address place() const {
    return ptx::shared_memory() + Traits::dQ_offset + warpgroup_ * Traits::dQ_bytes;
  }

  FLASHSMITH_DEVICE void add_sums(dQAccumulator<Traits> &dQ) const {
    const BufferBarriers barriers = Barriers::sums(warpgroup_);
    ptx::mbarrier_wait_parity(barriers.full, position_.parity(Position::ring_of_sums));
    position_.begin_round(Position::ring_of_sums);
    add_staged<Traits>(dQ, place());
    publish(barriers.empty);
  }
};

}  // namespace flashsmith::sm90
