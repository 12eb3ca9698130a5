// A configuration of decode at compile time: the tiles of a forward kernel, over the keys of a KV
// cache. flashsmith.configs states the same conditions in Python (problems()).
#pragma once

#include "flashsmith/attention/decode_sequence.cuh"
#include "flashsmith/sm90/decode_arguments.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

template <Sm90DecodeKernelConfig CFG, Variant VARIANT = Variant{}>
struct DecodeTraits : KernelTraits<forward_config(CFG), VARIANT> {
  using Forward = KernelTraits<forward_config(CFG), VARIANT>;
  using cache_t = typename Forward::value_t;
  using Sequence = DecodeSequence;
  static constexpr bool fp8_cache = false, per_token_scale = false;
  static_assert(CFG.n_warpgroups <= 2, "1 or 2 warpgroups share the rows of Q");
  static_assert(!VARIANT.window, "boxes bring all rows of a block, those before a window, too");
  static_assert(!VARIANT.bias, "decode adds no bias");
  static_assert(!VARIANT.dropout, "decode drops no weights");
  static_assert(!VARIANT.varlen, "lengths are arguments of every decode");

  // The granularity of the split-KV schedule (attention/key_splits.cuh): all warpgroups of a block
  // visit the same keys, and many blocks combine the partial results of a work tile.
  static constexpr int n_teams = 1, min_steps = 1;
  static constexpr int many_splits = 128, min_steps_of_many = 2, range_cost = 8;

  // Splits that wait, and stream-K, have kernels of their own (WaitingTraits).
  static constexpr bool waits = false, equal_splits = true, one_split = false;
  static constexpr int combining_threads = flashsmith::combining_threads(CFG);
  static_assert(combining_threads * kThreadPartialBytes <= kWgmmaM * Forward::Q_tile.row_bytes,
                "a warpgroup's rows of Q have room for the sums of threads that combine");

  // The producer computes the schedule, too, which takes it more registers than copying alone.
  static constexpr RegisterSplit registers = {40, 232};

  // The words by which a thread of each warpgroup tells the others what its arrivals at up to two
  // work tiles have found. They have the place of the forward's tile queue.
  static constexpr int arrived_offset = Forward::queue_offset;
  static constexpr int arrived_words = 2;
  static_assert(arrived_offset + CFG.n_warpgroups * arrived_words * sizeof(uint32_t) <=
                    Forward::barriers_offset,
                "the words have room before the barriers");
};

// The traits of kernels whose splits wait for each other (attention/split_arrivals.cuh). With
// stream-K a block may have two splits that share a work tile with others, its first and its last;
// with equal splits it has one split.
template <typename Traits, bool kStreamK>
struct WaitingTraits : Traits {
  static constexpr bool waits = true, equal_splits = !kStreamK, one_split = !kStreamK;
};

}  // namespace flashsmith::sm90
