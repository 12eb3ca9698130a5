// Stores dK and dV of warpgroups that share keys, whose accumulators are transposed: through shared
// memory, 16 keys at a time.
#pragma once

#include "flashsmith/sm90/backward_epilogue.cuh"
#include "flashsmith/sm90/backward_shared_keys_gemm.cuh"
#include "flashsmith/sm90/backward_staging.cuh"

namespace flashsmith::sm90 {

// Stores the warp's 16 columns of dK or dV of all keys. P and dS are free: of the warpgroup's boxes
// there, which no other warpgroup writes, the warp has the rows that only it writes, too.
template <typename Traits>
FLASHSMITH_DEVICE void store_transposed(const GradientRows<typename Traits::value_t> &rows,
                                        const TransposedAccumulator<Traits> &sums, float factor,
                                        int warpgroup) {
  constexpr int kKeys = 16, kRowBytes = kWarpRows * 2;
  static_assert(kKeys * kRowBytes <= kWarpRows * Traits::dS_row_bytes,
                "the keys of a round have room in the warp's rows of P, or of dS");
  const int lane = warpgroup_lane(), warp = warpgroup_warp();
  const int staging = warpgroup * Traits::dS_box_bytes + warp * kWarpRows * Traits::dS_row_bytes;
  const int written = (lane / 16 * 8 + lane % 8) * kRowBytes + lane / 8 % 2 * 16, read = lane * 16;
  const int key = lane / 2;
  const int column = warpgroup * kWgmmaM + warp * kWarpRows + lane % 2 * 8;
#pragma unroll
  for (int round = 0; round < Traits::B_c / kKeys; round++) {
    // The rounds alternate, so that no lane still reads what another one overwrites.
    const ptx::shared_address place =
        ptx::shared_memory() + staging +
        (round % 2 == 0 ? Traits::P_offset : Traits::shared_dS_offset);
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int element = round * 8 + 2 * i;
      words[i] =
          ptx::pack<typename Traits::value_t>(sums[element] * factor, sums[element + 1] * factor);
    }
    ptx::stmatrix_x4_transposed(place + written, words);
    ptx::warp_sync();
    ptx::Chunk chunk;
    ptx::load_shared_16(chunk, place + read);
    const int own_key = round * kKeys + key;
    if (own_key < rows.n_rows && (!Traits::padded || column < rows.n_columns)) {
      ptx::thread_store_global_16(rows.first + own_key * rows.stride + column, chunk);
    }
  }
}

}  // namespace flashsmith::sm90
