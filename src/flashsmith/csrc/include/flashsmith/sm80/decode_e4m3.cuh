// The products of decode with FP8 K and V, which are converted to 16 bits between shared memory and
// the tensor cores.
//
// ldmatrix moves units of 16 bits, so a lane gets four neighbouring bytes of a row of K where mma
// needs two pairs that are eight columns apart. The order of columns in a sum is free, so Q's
// columns are permuted in the same way. From transposed V a lane gets two neighbouring columns of
// two keys: of every 16 columns of O, the even ones form one n tile and the odd ones the next.
#pragma once

#include "flashsmith/attention/e4m3.cuh"
#include "flashsmith/sm80/gemm.cuh"

namespace flashsmith::sm80 {

// Returns the column of Q that a lane's word `i`, of two elements, begins with: words 2 k and 2 k +
// 1 belong to fragment k.
template <bool kE4m3>
FLASHSMITH_DEVICE int Q_column(int i, int lane) {
  if constexpr (!kE4m3) return i * kMmaN + first_column(lane);
  return i / 2 * kMmaK + lane % kLanesPerRow * 4 + i % 2 * 2;
}

// Returns the same for word `word` of a chunk of a row in shared memory, from which ldmatrix loads
// fragments.
FLASHSMITH_DEVICE int Q_column_of_chunk(int chunk, int word) {
  return chunk / 2 * kMmaK + word * 4 + chunk % 2 * 2;
}

// Computes S like gemm_QK.
template <typename Traits>
FLASHSMITH_DEVICE void gemm_QK_e4m3(SAccumulators<Traits> &S, QFragments<Traits> &q,
                                    ptx::shared_address Q, ptx::shared_address K, int lane,
                                    int never_zero) {
  using KTile = SmemTile<typename Traits::CacheTile>;
  using QSchedule = typename Traits::QSchedule;
  using KSchedule = typename Traits::ByteSchedule;
  using score_t = typename Traits::score_t;
  const int Q_offset = SmemTile<Traits>::lane_offset(lane), K_offset = KTile::K_lane_offset(lane);
  uint32_t bytes[KSchedule::slots][Traits::S_n_tiles / 2][4];
#pragma unroll
  for (float &score : S[0]) score = 0.f;

#pragma unroll
  for (int step = 0; step < Traits::QK_fragments; step++) {
    if constexpr (!Traits::Q_in_registers) {
      QSchedule::advance(step, never_zero, [&](int slot, int k) {
        load_Q_fragment<Traits>(q[slot], Q, Q_offset, k);
      });
    }
    if (step % 2 == 0) {
      KSchedule::advance(step / 2, never_zero, [&](int slot, int k) {
#pragma unroll
        for (int n = 0; n < Traits::S_n_tiles / 2; n++) {
          ptx::ldmatrix_x4<false>(bytes[slot][n], K + KTile::fragment_offset(K_offset, n, k));
        }
      });
    }
    const auto &a = q[step % QSchedule::slots][0];
    const auto &own = bytes[step / 2 % KSchedule::slots];
#pragma unroll
    for (int n = 0; n < Traits::S_n_tiles; n++) {
      uint32_t b[2];
      unpack_e4m3<score_t, BytePairs::neighbours>(b, own[n / 2][n % 2 * 2 + step % 2]);
      ptx::mma_m16n8k16<score_t>(n_tile(S[0], n), a, b[0], b[1]);
    }
  }
}

// Converts the two rows of Q that a lane has words of from BF16 to FP16, each multiplied with a
// power of two that brings its largest number close to FP16's max. Numbers below 2^-39 of that lose
// bits. `factors` receives the factors by which scores have to be multiplied.
template <typename Traits>
FLASHSMITH_DEVICE void scale_to_half(QFragments<Traits> &q, float (&factors)[kHalves]) {
  constexpr uint32_t kMagnitude = 0x7fff0000, kExponent = 23, kBias = 127;
  constexpr uint32_t kLargestFinite = 254;  // the largest finite exponent; infinity and NaN stay so
  constexpr uint32_t kFirst = 14 + 2 * kBias, kLargestFactor = 253;
#pragma unroll
  for (int half = 0; half < kHalves; half++) {
    uint32_t maximum = 0;
    const auto for_each_word = [&](auto &&use) {
#pragma unroll
      for (int i = 0; i < 2 * Traits::QK_fragments; i++) use(q[i / 2][0][i % 2 * 2 + half]);
    };
    for_each_word([&](uint32_t word) {
      const uint32_t low = word << 16 & kMagnitude, high = word & kMagnitude;
      maximum = maximum > low ? maximum : low;
      maximum = maximum > high ? maximum : high;
    });
    const float of_row = reduce_row(ptx::bits_float(maximum), fmaxf);
    uint32_t exponent = ptx::float_bits(of_row) >> kExponent;
    exponent = exponent < kLargestFinite ? exponent : kLargestFinite;
    uint32_t up = kFirst - exponent;
    up = up < kLargestFactor ? up : kLargestFactor;
    const float factor = ptx::bits_float(up << kExponent);
    factors[half] = ptx::bits_float((2 * kBias - up) << kExponent);
    for_each_word([&](uint32_t &word) {
      word = ptx::pack<half_t>(ptx::bits_float(word << 16) * factor,
                               ptx::bits_float(word & 0xffff0000) * factor);
    });
  }
}

// Computes O += P V with P in FP16. columns_e4m3 returns the columns of a lane in order.
template <typename Traits>
FLASHSMITH_DEVICE void gemm_PV_e4m3(Fragment<Traits::d_head> &O,
                                    const uint32_t (&P)[Traits::PV_fragments][4],
                                    ptx::shared_address V, int lane) {
  using VTile = SmemTile<typename Traits::CacheTile>;
  const int lane_offset = VTile::lane_offset(lane);
#pragma unroll
  for (int k = 0; k < Traits::PV_fragments; k++) {
#pragma unroll
    for (int n = 0; n < Traits::O_n_tiles; n += 4) {
      uint32_t bytes[4];
      ptx::ldmatrix_x4<true>(bytes, V + VTile::fragment_offset(lane_offset, k, n / 4));
#pragma unroll
      for (int i = 0; i < 2; i++) {
        uint32_t low[2], high[2];  // the first eight keys, and the next eight
        unpack_e4m3<half_t, BytePairs::in_turn>(low, bytes[2 * i]);
        unpack_e4m3<half_t, BytePairs::in_turn>(high, bytes[2 * i + 1]);
#pragma unroll
        for (int parity = 0; parity < 2; parity++) {
          ptx::mma_m16n8k16<half_t>(n_tile(O, n + 2 * i + parity), P[k], low[parity], high[parity]);
        }
      }
    }
  }
}

// Returns four neighbouring columns of O, from 16 i + 4 (lane % 4) on, of one of the lane's rows.
template <int kElements>
FLASHSMITH_DEVICE ptx::Chunk columns_e4m3(const float (&O)[kElements], int i, int half) {
  const float *even = O + 8 * i + 2 * half, *odd = even + 4;
  return {ptx::float_bits(even[0]), ptx::float_bits(odd[0]), ptx::float_bits(even[1]),
          ptx::float_bits(odd[1])};
}

}  // namespace flashsmith::sm80
