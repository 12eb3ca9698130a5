// The warp that loads blocks of K and V from a cache, split after split.
#pragma once

#include "flashsmith/attention/key_splits.cuh"
#include "flashsmith/sm90/boxes.cuh"
#include "flashsmith/sm90/cached_keys.cuh"

namespace flashsmith::sm90 {

// Blocks are visited from the last to the first, as the forward does.
template <typename Traits>
FLASHSMITH_DEVICE void produce_from_cache(const Sm90DecodeKernelArgs &args) {
  const ptx::shared_address shared = ptx::shared_memory();
  RingPosition<Traits::n_stages> stage;
  KeySplits<Traits> splits(args.problem);
  splits.turn_to_line();
  KeySplit split;
  while (splits.next(split)) {
    const DecodeSequence sequence(args.problem, split.batch);
    const CachedKeys K(sequence, args.box_rows, split.head, args.K_batch_rows);
    const CachedKeys V(sequence, args.box_rows, split.head, args.V_batch_rows);
    for (int block = split.end - 1; block >= split.begin; block--, stage.advance()) {
      const int key = block * Traits::B_c;
      load_boxes<Traits, Traits::K_tile>(shared + Traits::K_offset + stage.buffer * Traits::K_bytes,
                                         Barriers<Traits>::K(stage.buffer), stage.parity,
                                         args.K_map, key, K);
      load_boxes<Traits, Traits::V_tile>(shared + Traits::V_offset + stage.buffer * Traits::V_bytes,
                                         Barriers<Traits>::V(stage.buffer), stage.parity,
                                         args.V_map, key, V);
    }
  }
}

}  // namespace flashsmith::sm90
