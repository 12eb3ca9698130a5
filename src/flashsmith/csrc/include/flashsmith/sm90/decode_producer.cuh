// The producer warps of decode: they load blocks of K and V from a KV cache, split after split.
#pragma once

#include "flashsmith/attention/key_splits.cuh"
#include "flashsmith/sm90/boxes.cuh"
#include "flashsmith/sm90/cached_keys.cuh"

namespace flashsmith::sm90 {

// One warp loads K, another V, because starting the copies of small pages takes a warp longer than
// its share of the products.
constexpr int kLoadingWarps = 2;

// Loads K or V. Blocks are visited from the last to the first, as in the forward.
template <typename Traits>
FLASHSMITH_DEVICE void produce_from_cache(const Sm90DecodeKernelArgs &args, bool is_V) {
  static_assert(Traits::K_bytes == Traits::V_bytes, "K and V lie alike");
  const ptx::shared_address buffers =
      ptx::shared_memory() + (is_V ? Traits::V_offset : Traits::K_offset);
  const ptx::TensorMap &map = is_V ? args.V_map : args.K_map;
  const int batch_rows = is_V ? args.V_batch_rows : args.K_batch_rows;
  RingPosition<Traits::n_stages> stage;
  KeySplits<Traits> splits(args.problem);
  splits.use_stream_k();
  KeySplit split;
  while (splits.next(split)) {
    const DecodeSequence sequence(args.problem, split.batch);
    const CachedKeys keys(sequence, args.box_rows, split.head, batch_rows);
    for (int block = split.end - 1; block >= split.begin; block--, stage.advance()) {
      load_boxes<Traits, Traits::K_tile>(
          buffers + stage.buffer * Traits::K_bytes,
          is_V ? Barriers<Traits>::V(stage.buffer) : Barriers<Traits>::K(stage.buffer),
          stage.parity, map, block * Traits::B_c, keys);
    }
  }
}

}  // namespace flashsmith::sm90
