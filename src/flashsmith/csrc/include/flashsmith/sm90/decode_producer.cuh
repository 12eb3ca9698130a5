// The producer warps of decode: they load blocks of K and V from a KV cache, split after split.
#pragma once

#include "flashsmith/attention/key_splits.cuh"
#include "flashsmith/sm90/boxes.cuh"
#include "flashsmith/sm90/cached_keys.cuh"
#include "flashsmith/sm90/named_barrier.cuh"

namespace flashsmith::sm90 {

// One warp loads K, another V, because starting the copies of small pages takes a warp longer than
// its share of the products.
constexpr int kLoadingWarps = 2;

// The order in which a block asks for its first Q, K and V. Whole warps execute its functions. The
// first loads of all blocks take all the memory bandwidth at once, for 4 us; asked for at once, Q
// and K would arrive at their end. A named barrier counts whole warps, whose lanes have to meet
// before.
template <typename Traits>
struct LoadingOrder {
  static constexpr int kAfterQ = Traits::n_warpgroups * kWarpgroupSize + kWarpSize;  // threads
  static constexpr int kAfterK = 2 * kWarpSize;

  static FLASHSMITH_DEVICE void let_K_follow() {
    const int barrier = ptx::named_barrier_of(NamedBarrier::Q_is_asked_for, 0);
    ptx::named_barrier_arrive(barrier, kAfterQ);  // for speed alone
  }
  static FLASHSMITH_DEVICE void let_V_follow() {
    ptx::warp_sync();  // beyond what the emulator sees
    const int barrier = ptx::named_barrier_of(NamedBarrier::K_is_asked_for, 0);
    ptx::named_barrier_arrive(barrier, kAfterK);  // for speed alone
  }
  static FLASHSMITH_DEVICE void wait(bool is_V) {
    ptx::warp_sync();  // beyond what the emulator sees
    const auto barrier = is_V ? NamedBarrier::K_is_asked_for : NamedBarrier::Q_is_asked_for;
    const int threads = is_V ? kAfterK : kAfterQ;
    ptx::named_barrier_sync(ptx::named_barrier_of(barrier, 0), threads);  // for speed alone
  }
};

// Loads K or V. Blocks are visited from the last to the first, as in the forward.
template <typename Traits>
FLASHSMITH_DEVICE void produce_from_cache(const Sm90DecodeKernelArgs &args, bool is_V) {
  static_assert(Traits::K_bytes == Traits::V_bytes, "K and V lie alike");
  const ptx::shared_address buffers =
      ptx::shared_memory() + (is_V ? Traits::V_offset : Traits::K_offset);
  const ptx::TensorMap &map = is_V ? args.V_map : args.K_map;
  const int batch_rows = is_V ? args.V_batch_rows : args.K_batch_rows;
  RingPosition<Traits::n_stages> stage;
  KeySplits<Traits, Traits::equal_splits> splits(args.problem);
  KeySplit split;
  bool is_first = true;
  while (splits.next(split)) {
    const DecodeSequence sequence(args.problem, split.batch);
    const CachedKeys keys(sequence, args.box_rows, split.head, batch_rows);
    for (int block = split.end - 1; block >= split.begin; block--, stage.advance()) {
      load_boxes<Traits, Traits::K_tile>(
          buffers + stage.buffer * Traits::K_bytes,
          is_V ? Barriers<Traits>::V(stage.buffer) : Barriers<Traits>::K(stage.buffer),
          stage.parity, map, block * Traits::B_c, keys, [&] {
            if (is_first) LoadingOrder<Traits>::wait(is_V);
          });
      if (is_first && !is_V) LoadingOrder<Traits>::let_V_follow();
      is_first = false;
    }
    if constexpr (Traits::one_split) break;
  }
}

}  // namespace flashsmith::sm90
