// Stores dK and dV.
#pragma once

#include "flashsmith/attention/gradient_rows.cuh"
#include "flashsmith/sm90/backward_gemm.cuh"
#include "flashsmith/sm90/epilogue.cuh"
#include "flashsmith/sm90/key_tile.cuh"

namespace flashsmith::sm90 {

// Stores dK or dV of the warp's 16 keys.
template <typename Traits>
FLASHSMITH_DEVICE void store_key_gradient(void *out, const TensorStrides &strides, int n_columns,
                                          const KeyTile<Traits> &tile, int warpgroup,
                                          const KeyAccumulator<Traits> &sums, float factor) {
  using value_t = typename Traits::value_t;
  const RowOffset place = tile.sequence.keys();
  const int warp = ptx::thread_index() % kWarpgroupSize / kWarpSize;
  const int key = tile.key + warpgroup * kWgmmaM + warp * kWarpRows;
  const GradientRows<value_t> rows{static_cast<value_t *>(out) + place.batch * strides.batch +
                                       tile.head_kv * strides.head +
                                       (place.row + key) * strides.seq,
                                   strides.seq, tile.sequence.seq_len_k() - key, n_columns};
  store_fragment<Traits>(rows, sums, factor);
}

}  // namespace flashsmith::sm90
