// Stores dK and dV.
#pragma once

#include "flashsmith/attention/gradient_rows.cuh"
#include "flashsmith/sm90/backward_gemm.cuh"
#include "flashsmith/sm90/epilogue.cuh"
#include "flashsmith/sm90/key_tile.cuh"

namespace flashsmith::sm90 {

// Returns the rows of a head of dK or dV from `key` of the sequence on.
template <typename Traits>
FLASHSMITH_DEVICE GradientRows<typename Traits::value_t> key_rows(
    void *out, const TensorStrides &strides, int n_columns,
    const typename Traits::Sequence &sequence, int head_kv, int key) {
  using value_t = typename Traits::value_t;
  const RowOffset place = sequence.keys();
  return {static_cast<value_t *>(out) + place.batch * strides.batch + head_kv * strides.head +
              (place.row + key) * strides.seq,
          strides.seq, sequence.seq_len_k() - key, n_columns};
}

// Stores dK or dV of the warp's 16 keys.
template <typename Traits>
FLASHSMITH_DEVICE void store_key_gradient(void *out, const TensorStrides &strides, int n_columns,
                                          const KeyTile<Traits> &tile, int warpgroup,
                                          const KeyAccumulator<Traits> &sums, float factor) {
  const int warp = ptx::thread_index() % kWarpgroupSize / kWarpSize;
  const int key = tile.key + warpgroup * kWgmmaM + warp * kWarpRows;
  store_fragment<Traits>(
      key_rows<Traits>(out, strides, n_columns, tile.sequence, tile.head_kv, key), sums, factor);
}

}  // namespace flashsmith::sm90
