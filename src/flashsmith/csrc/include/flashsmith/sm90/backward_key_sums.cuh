// dK and dV in FP32, where the query heads of a group are split into parts and each part is a tile
// by itself for every block of keys; and the kernel that adds the parts.
//
// A block of kSummedKeys keys has the sums of dK, then those of dV, each in the layout of dQ's sums
// by chunks (attention/dQ_sums.cuh): the fragments of a warpgroup. Parts add to the same sums, in
// any order. If results must have the same bits in every run, each part has sums of its own, which
// are added in their order: more memory to write and to read.
#pragma once

#include "flashsmith/attention/dQ_sums.cuh"
#include "flashsmith/attention/dropout.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/sm90/backward_epilogue.cuh"
#include "flashsmith/sm90/backward_gemm.cuh"
#include "flashsmith/sm90/key_tile.cuh"

namespace flashsmith::sm90 {

enum class KeyGradient : int { dK, dV };

// Returns the index of a sequence's first block of keys. Packed sequences get one block more than
// their keys need, so that no two share a block (see first_statistics_block).
template <SequencePolicy Sequence>
FLASHSMITH_DEVICE int first_key_block(const GroupPartArgs &args, const Sequence &sequence,
                                      int batch) {
  if (args.packed_k) return sequence.keys().row / kSummedKeys + batch;
  return batch * args.n_key_blocks;
}

// The sums of a block of keys of a head. `block` counts the blocks of all sequences.
template <typename Traits>
class KeySums {
  static constexpr int kFloats = Traits::key_sums_floats / 2;
  static constexpr int kChunks = Traits::d_head / 8;
  static_assert(kSummedKeys == kWgmmaM && kSumsThreads == kWarpgroupSize,
                "a warpgroup's fragments are a block of sums");

  const GroupPartArgs &args_;
  const int64_t place_, blocks_per_part_;
  const int thread_;  // of the warpgroup

 public:
  FLASHSMITH_DEVICE KeySums(const Sm90BackwardKernelArgs &args, int head_kv, int block)
      : args_(args.parts),
        place_(static_cast<int64_t>(head_kv) * args.parts.all_key_blocks + block),
        blocks_per_part_(static_cast<int64_t>(args.problem.n_heads_kv) * args.parts.all_key_blocks),
        thread_(ptx::thread_index() % kWarpgroupSize) {}

  // Adds the sums of a part, or stores them if each part has its own.
  FLASHSMITH_DEVICE void put(int part, KeyGradient gradient,
                             const KeyAccumulator<Traits> &sums) const {
    float *own = of(Traits::adds_parts ? 0 : part, gradient);
#pragma unroll
    for (int i = 0; i < kChunks; i++) {
      const float *words = sums + 4 * i;
      if constexpr (Traits::adds_parts) {
        add_to_sums<true>(own, i, thread_, {words[0], words[1], words[2], words[3]});
      } else {
        ptx::Chunk chunk;
#pragma unroll
        for (int word = 0; word < 4; word++) chunk.word[word] = ptx::float_bits(words[word]);
        ptx::store_global_16(own + sums_place<true>(i, thread_, 0), chunk);
      }
    }
  }

  // Loads the sum over all parts.
  FLASHSMITH_DEVICE void load(KeyGradient gradient, KeyAccumulator<Traits> &sums) const {
    load_part(0, gradient, sums);
    if constexpr (Traits::adds_parts) return;
#pragma unroll 1
    for (int part = 1; part < args_.n_parts; part++) {
      KeyAccumulator<Traits> more;
      load_part(part, gradient, more);
#pragma unroll
      for (int i = 0; i < 4 * kChunks; i++) sums[i] += more[i];
    }
  }

 private:
  FLASHSMITH_DEVICE float *of(int part, KeyGradient gradient) const {
    const int64_t block = part * blocks_per_part_ + place_;
    return args_.sums + (2 * block + static_cast<int>(gradient)) * kFloats;
  }
  FLASHSMITH_DEVICE void load_part(int part, KeyGradient gradient,
                                   KeyAccumulator<Traits> &sums) const {
#pragma unroll
    for (int i = 0; i < kChunks; i++) {
      load_sums<true>(sums + 4 * i, of(part, gradient), i, thread_);
    }
  }
};

// Adds or stores a warpgroup's dK and dV, without their factors. A warpgroup beyond the end of the
// keys has no block of sums.
template <typename Traits>
FLASHSMITH_DEVICE void put_key_sums(const Sm90BackwardKernelArgs &args, const KeyTile<Traits> &tile,
                                    int warpgroup, const KeyAccumulator<Traits> &dK,
                                    const KeyAccumulator<Traits> &dV) {
  const int key = tile.key + warpgroup * kSummedKeys;
  if (key >= tile.sequence.seq_len_k()) return;
  const int block = first_key_block(args.parts, tile.sequence, tile.batch) + key / kSummedKeys;
  const KeySums<Traits> sums(args, tile.head_kv, block);
  sums.put(tile.part, KeyGradient::dV, dV);
  sums.put(tile.part, KeyGradient::dK, dK);
}

// Converts dK and dV, after it has added parts that have sums of their own. Grid: (blocks of
// kSummedKeys of the longest sequence, n_heads_kv, batch). Block: kSumsThreads.
template <typename Traits>
__global__ void __launch_bounds__(kSumsThreads)
    key_sums_kernel(const __grid_constant__ Sm90BackwardKernelArgs args) {
  ptx::wait_for_launch_before();
  ptx::let_next_launch_begin();
  const ProblemArgs &problem = args.problem;
  const GradientArgs &gradient = args.gradient;
  const int block = ptx::block_index_x(), head = ptx::block_index_y();
  const int batch = ptx::block_index_z(), warp = ptx::thread_index() / kWarpSize;
  const typename Traits::Sequence sequence(problem, batch);
  const int key = block * kSummedKeys + warp * kFragmentRows;
  if (key >= sequence.seq_len_k()) return;
  const KeySums<Traits> sums(args, head, first_key_block(args.parts, sequence, batch) + block);
  KeyAccumulator<Traits> elements;
  sums.load(KeyGradient::dV, elements);
  store_fragment<Traits>(
      key_rows<Traits>(gradient.dV, gradient.dV_strides, problem.d_v, sequence, head, key),
      elements, scale_of_kept<Traits>(problem));
  sums.load(KeyGradient::dK, elements);
  store_fragment<Traits>(
      key_rows<Traits>(gradient.dK, gradient.dK_strides, problem.d_qk, sequence, head, key),
      elements, gradient.softmax_scale);
}

}  // namespace flashsmith::sm90
