#include "emulator/mma.h"

#include <cstring>

#include "emulator/elements.h"

namespace flashsmith::emulator {

namespace {

constexpr int kM = 16, kN = 8, kK = 16, kLanes = 32;
constexpr unsigned kPairs = 4;  // pairs in 8 columns of A or 8 rows of B, as lanes in a quad
constexpr int kParts = kN / kWidth;

// Multiplies fragments as in PTX ISA 9.7.14 (mma.m16n8k16, .f16 and .bf16). With g = lane / 4, p =
// lane % 4:
//
//    a[0], a[1]  columns 2p, 2p + 1 of rows g, g + 8 of A; a[2], a[3] columns 2p + 8, 2p + 9
//    b[0]        rows 2p, 2p + 1 of column g of B; b[1] rows 2p + 8, 2p + 9
//    c[0], c[1]  columns 2p, 2p + 1 of row g; c[2], c[3] those of row g + 8
template <class Decode>
void multiply(MmaArguments *const *lanes, Decode decode) {
  alignas(Words) uint32_t a_pairs[kK / 2][kM], b_pairs[kK / 2][kN];
  alignas(Floats) float a[kK][kM], c[kM][kN];
  Floats b[kK][kParts];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned g = lane / kPairs, p = lane % kPairs;
    const MmaArguments &registers = *lanes[lane];
    a_pairs[p][g] = registers.a[0];
    a_pairs[p][g + 8] = registers.a[1];
    a_pairs[p + kPairs][g] = registers.a[2];
    a_pairs[p + kPairs][g + 8] = registers.a[3];
    b_pairs[p][g] = *registers.b[0];
    b_pairs[p + kPairs][g] = *registers.b[1];
    std::memcpy(&c[g][2 * p], &registers.c[0], 2 * sizeof(float));
    std::memcpy(&c[g + 8][2 * p], &registers.c[2], 2 * sizeof(float));
  }
  for (int pair = 0; pair < kK / 2; ++pair) {
    for (int i = 0; i < kM; i += kWidth) {
      const Words words = *reinterpret_cast<const Words *>(&a_pairs[pair][i]);
      *reinterpret_cast<Floats *>(&a[2 * pair][i]) = decode(words & 0xFFFF);
      *reinterpret_cast<Floats *>(&a[2 * pair + 1][i]) = decode(words >> 16);
    }
    for (int i = 0; i < kParts; ++i) {
      const Words words = *reinterpret_cast<const Words *>(&b_pairs[pair][i * kWidth]);
      b[2 * pair][i] = decode(words & 0xFFFF);
      b[2 * pair + 1][i] = decode(words >> 16);
    }
  }
  constexpr int kRows = 4;  // at a time: independent sums hide the latency of the addition
  for (int first = 0; first < kM; first += kRows) {
    Floats sum[kRows][kParts];
    std::memcpy(sum, c[first], sizeof sum);
    for (int k = 0; k < kK; ++k) {
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        sum[row][0] += a[k][first + row] * b[k][0];
        sum[row][1] += a[k][first + row] * b[k][1];
      }
    }
    std::memcpy(c[first], sum, sizeof sum);
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned g = lane / kPairs, p = lane % kPairs;
    std::memcpy(&lanes[lane]->c[0], &c[g][2 * p], 2 * sizeof(float));
    std::memcpy(&lanes[lane]->c[2], &c[g + 8][2 * p], 2 * sizeof(float));
  }
}

}  // namespace

void multiply_m16n8k16(MmaArguments *const *lanes, MmaType type) {
  if (type == MmaType::f16) {
    multiply(lanes, DecodeF16{});
  } else {
    multiply(lanes, DecodeBf16{});
  }
}

}  // namespace flashsmith::emulator
