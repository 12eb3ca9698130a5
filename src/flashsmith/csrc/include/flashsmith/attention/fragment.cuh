// The layout of 16 rows of a matrix in the lanes of a warp: that of the accumulators of
// mma.m16n8k16 and wgmma. Code that works on scores or on O element by element uses it.
//
//             columns 0 1 | 2 3 | 4 5 | 6 7 | 8 9 ...
//    row 0    lane    0   |  1  |  2  |  3  |  0         elements 0 and 1 of these lanes, then 4
//    row 1    lane    4   |  5  |  6  |  7  |  4         and 5 for the next 8 columns, and so on
//    ...
//    row 8    lane    0   |  1  |  2  |  3  |  0         elements 2 and 3, then 6 and 7
//
// Element 4 j + 2 h + i of lane l is column 8 j + 2 (l % 4) + i of row l / 4 + 8 h. A row is spread
// over the four lanes of a quad, and a lane has two rows: half h of the tile. See the PTX ISA,
// Matrix Fragments for mma.m16n8k16 and wgmma.
#pragma once

#include <type_traits>

#include "flashsmith/ptx/bytes.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/platform.cuh"

namespace flashsmith {

constexpr int kFragmentRows = 16, kHalves = 2, kRowsPerHalf = 8, kLanesPerRow = 4;

template <int kColumns>
using Fragment = float[kColumns / 2];

// Whether the rows of a fragment of scores are queries or keys; the columns are the other.
enum class RowsAre : uint8_t { queries, keys };

// half_of returns the half of the tile that an element lies in, column_of its column counted from
// the lane's first.
FLASHSMITH_HOST_DEVICE constexpr int half_of(int element) { return element / 2 % 2; }
FLASHSMITH_HOST_DEVICE constexpr int column_of(int element) {
  return element / 4 * 8 + element % 2;
}

// The following functions return a lane's first row and first column in the tile.
FLASHSMITH_DEVICE int first_row(int lane) { return lane / kLanesPerRow; }
FLASHSMITH_DEVICE int first_column(int lane) { return lane % kLanesPerRow * 2; }

// Returns the first kCount elements of an array: of a fragment, those of the first columns.
template <int kCount, typename T, int kElements>
FLASHSMITH_DEVICE auto first_elements(T (&array)[kElements]) -> T (&)[kCount] {
  static_assert(kCount <= kElements, "an array has its first elements");
  return reinterpret_cast<T(&)[kCount]>(array);
}

// Combines the values of the four lanes of a row; all of them get the result.
template <typename Operation>
FLASHSMITH_DEVICE float reduce_row(float value, Operation operation) {
  value = operation(value, ptx::shuffle_xor<1>(value));
  return operation(value, ptx::shuffle_xor<2>(value));
}

// Transposes words in a quad: lane q gives word i to lane i, as its word q.
FLASHSMITH_DEVICE void transpose_quad(uint32_t (&words)[4]) {
  const auto exchange = [](auto mask, uint32_t &low, uint32_t &high) {
    const bool upper = ptx::thread_index() & mask.value;
    const uint32_t given = upper ? low : high;
    const uint32_t taken = ptx::float_bits(ptx::shuffle_xor<mask.value>(ptx::bits_float(given)));
    (upper ? low : high) = taken;
  };
  constexpr std::integral_constant<int, 1> kNeighbour;
  constexpr std::integral_constant<int, 2> kPair;
  exchange(kNeighbour, words[0], words[1]);
  exchange(kNeighbour, words[2], words[3]);
  exchange(kPair, words[0], words[2]);
  exchange(kPair, words[1], words[3]);
}

// Packs the elements of two rows to words of two, in the order of an operand of the next product:
// words 4 k to 4 k + 3 are columns 16 k to 16 k + 15.
template <typename value_t, int kElements>
FLASHSMITH_DEVICE void pack_operand(uint32_t (&operand)[kElements / 8][4],
                                    const float (&fragment)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements / 2; i++) {
    operand[i / 4][i % 4] = ptx::pack<value_t>(fragment[2 * i], fragment[2 * i + 1]);
  }
}

// Packs the elements of two rows to words of four FP8 numbers, as operands of the next product:
// words 4 k to 4 k + 3 are columns 32 k to 32 k + 31. A lane packs the elements that it has, so in
// every 16 columns positions 4 p to 4 p + 3 hold columns 2 p, 2 p + 1, 2 p + 8 and 2 p + 9.
template <int kElements>
FLASHSMITH_DEVICE void pack_operand_e4m3(uint32_t (&operand)[kElements / 16][4],
                                         const float (&fragment)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements / 4; i++) {
    const int first = i / 2 * 8 + i % 2 * 2;  // among 16 columns, in one half
    operand[i / 4][i % 4] = ptx::pack_e4m3(fragment[first], fragment[first + 1],
                                           fragment[first + 4], fragment[first + 5]);
  }
}

}  // namespace flashsmith
