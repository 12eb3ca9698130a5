// The common base of the two warpgroups that compute dK and dV of the split backward.
#pragma once

#include "flashsmith/sm90/backward_gemm.cuh"
#include "flashsmith/sm90/query_walk.cuh"
#include "flashsmith/sm90/split_backward_pipeline.cuh"

namespace flashsmith::sm90 {

// A warpgroup that keeps 64 keys and one sum, and visits tiles of queries.
template <typename Traits>
class KeyConsumer {
 protected:
  using value_t = typename Traits::value_t;
  using Barriers = dKdVBarriers<Traits>;
  using Memory = dKdVMemory<Traits>;
  // Groups of 16 queries have a chunk of statistics each.
  static constexpr int kGroups = Traits::B_r / kFragmentRows;
  static constexpr int kChunkBytes = 16;

  const Sm90BackwardKernelArgs &args_;
  const KeyTile<Traits> &tile_;
  KeyAccumulator<Traits> sum_;
  ScoreAccumulator<Traits> scores_;
  ScoreOperand<Traits> operand_;
  ptx::Chunk statistics_;  // of columns 4 k, 4 k + 1, 4 k + 4 and 4 k + 5 of the lane's elements
  RingPosition<Traits::Q_stages> Q_stage_;
  RingPosition<Traits::dO_stages> dO_stage_;
  RingPosition<kPBuffers> P_buffer_;

  FLASHSMITH_DEVICE KeyConsumer(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile)
      : args_(args), tile_(tile) {
#pragma unroll
    for (int i = 0; i < Traits::d_head / 2; i++) sum_[i] = 0.f;
  }

 public:
  FLASHSMITH_DEVICE const KeyAccumulator<Traits> &sum() const { return sum_; }

 protected:
  static FLASHSMITH_DEVICE int thread() { return ptx::thread_index() % kWarpgroupSize; }
  static FLASHSMITH_DEVICE int lane() { return ptx::thread_index() % kWarpSize; }

  static FLASHSMITH_DEVICE int place_of_Q(int stage) {
    return Memory::Q + stage * Traits::tile_bytes;
  }
  static FLASHSMITH_DEVICE int place_of_dO(int stage) {
    return Memory::dO + stage * Traits::tile_bytes;
  }

  // Loads statistics of 16 queries of the stage of Q. `first` chooses the LSEs or the deltas.
  FLASHSMITH_DEVICE void load_statistics(int first, int group) {
    ptx::load_shared_16(statistics_, ptx::shared_memory() + Memory::statistics +
                                         Q_stage_.buffer * kStatisticsBytes + first * 4 +
                                         group * 64 + lane() % kLanesPerRow * 16);
  }
  // Returns the statistic of the query of an element of these 16.
  FLASHSMITH_DEVICE float statistic(int element) const {
    return ptx::bits_float(statistics_.word[element / 4 * 2 + element % 2]);
  }

  // Returns the address of the thread's chunk in a buffer of P: the fragments of both warpgroups
  // have the same layout.
  FLASHSMITH_DEVICE ptx::shared_address place_of_P(int chunk) const {
    return ptx::shared_memory() + Memory::P + P_buffer_.buffer * Memory::kPBytes +
           (chunk * kWarpgroupSize + thread()) * kChunkBytes;
  }
};

}  // namespace flashsmith::sm90
