#include "emulator/matrix_operand.h"

#include <cstring>

#include "emulator/elements.h"

namespace flashsmith::emulator {

namespace {

constexpr uint32_t kChunkBytes = 16, kChunkElements = 8, kCoreRows = 8;

uint32_t field(uint64_t bits, int first, int count) {
  return static_cast<uint32_t>(bits >> first & ((uint64_t{1} << count) - 1));
}

template <class Decode>
void decode_chunk(const uint8_t *bytes, float (&values)[kChunkElements], Decode decode) {
  uint16_t halves[kChunkElements];
  std::memcpy(halves, bytes, sizeof halves);
  for (unsigned i = 0; i < kChunkElements; i += kWidth) {
    const Words words{halves[i], halves[i + 1], halves[i + 2], halves[i + 3]};
    const Floats floats = decode(words);
    std::memcpy(&values[i], &floats, sizeof floats);
  }
}

template <class Decode>
void read_values(SharedMemory &shared, const AsyncAccess &access, const MatrixDescriptor &matrix,
                 uint32_t rows, bool mn_major, float *values, Decode decode) {
  const auto chunk_at = [&](uint32_t offset, float (&chunk)[kChunkElements]) {
    const uint8_t *bytes = shared.data() + offset;
    shared.read(access, shared.offset(bytes, kChunkBytes, 0), kChunkBytes);
    decode_chunk(bytes, chunk, decode);
  };
  float chunk[kChunkElements];
  if (mn_major) {
    for (uint32_t k = 0; k < kWgmmaK; ++k) {
      for (uint32_t i = 0; i < rows / kChunkElements; ++i) {
        chunk_at(matrix.mn_major(i, k), chunk);
        std::memcpy(&values[k * rows + i * kChunkElements], chunk, sizeof chunk);
      }
    }
    return;
  }
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t i = 0; i < kWgmmaK / kChunkElements; ++i) {
      chunk_at(matrix.k_major(row, i), chunk);
      for (uint32_t j = 0; j < kChunkElements; ++j) {
        values[(i * kChunkElements + j) * rows + row] = chunk[j];
      }
    }
  }
}

}  // namespace

MatrixDescriptor::MatrixDescriptor(uint64_t bits)
    : start(field(bits, 0, 14) << 4),
      leading_bytes(field(bits, 16, 14) << 4),
      stride_bytes(field(bits, 32, 14) << 4),
      base_offset(field(bits, 49, 3)) {
  constexpr Swizzle kModes[] = {Swizzle::none, Swizzle::bytes_128, Swizzle::bytes_64,
                                Swizzle::bytes_32};
  swizzle = kModes[field(bits, 62, 2)];
}

uint32_t MatrixDescriptor::k_major(uint32_t row, uint32_t chunk) const {
  // Eight rows make a core matrix; rows are as long as the swizzle, which permutes their chunks.
  const uint32_t core = start + row / kCoreRows * stride_bytes;
  if (swizzle == Swizzle::none) {
    return core + row % kCoreRows * kChunkBytes + chunk * leading_bytes;
  }
  const uint32_t row_bytes = kChunkBytes << static_cast<unsigned>(swizzle);
  return swizzled(core + row % kCoreRows * row_bytes + chunk * kChunkBytes, swizzle);
}

uint32_t MatrixDescriptor::mn_major(uint32_t chunk, uint32_t k) const {
  if (swizzle == Swizzle::none) {
    return start + chunk * stride_bytes + k / kCoreRows * leading_bytes +
           k % kCoreRows * kChunkBytes;
  }
  const uint32_t row_bytes = kChunkBytes << static_cast<unsigned>(swizzle);
  const uint32_t row_chunks = row_bytes / kChunkBytes;
  return swizzled(start + chunk / row_chunks * leading_bytes + chunk % row_chunks * kChunkBytes +
                      k / kCoreRows * stride_bytes + k % kCoreRows * row_bytes,
                  swizzle);
}

void read_operand(SharedMemory &shared, const AsyncAccess &access, uint64_t descriptor, int rows,
                  bool mn_major, MmaType type, float *values) {
  const MatrixDescriptor matrix(descriptor);
  if (matrix.base_offset != 0) {
    throw Problem{0,
                  "a matrix descriptor with a base offset is not emulated: place the "
                  "matrix where its swizzle begins"};
  }
  const auto count = static_cast<uint32_t>(rows);
  if (type == MmaType::f16) {
    read_values(shared, access, matrix, count, mn_major, values, DecodeF16{});
  } else {
    read_values(shared, access, matrix, count, mn_major, values, DecodeBf16{});
  }
}

void decode_pair(uint32_t word, MmaType type, float &low, float &high) {
  const Words words{word & 0xFFFF, word >> 16, 0, 0};
  const Floats floats = type == MmaType::f16 ? DecodeF16{}(words) : DecodeBf16{}(words);
  low = floats[0];
  high = floats[1];
}

// Twice or four times as fast where the host has longer vectors; equal results, as no product is
// fused with its sum (-ffp-contract=off).
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define FLASHSMITH_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FLASHSMITH_CLONES
#endif

FLASHSMITH_CLONES
void multiply_add(float *c, const float *a, const float *b, int n) {
  constexpr int kRows = 4, kColumns = 8;  // at a time: independent sums hide an addition's latency
  typedef float Row __attribute__((vector_size(kColumns * sizeof(float))));
  for (int column = 0; column < n; column += kColumns) {
    Row b_rows[kWgmmaK];
    for (int k = 0; k < kWgmmaK; ++k) std::memcpy(&b_rows[k], &b[k * n + column], sizeof(Row));
    for (int first = 0; first < kWgmmaM; first += kRows) {
      Row sum[kRows];
      for (int row = 0; row < kRows; ++row) {
        std::memcpy(&sum[row], &c[(first + row) * n + column], sizeof(Row));
      }
      for (int k = 0; k < kWgmmaK; ++k) {
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          sum[row] += a[k * kWgmmaM + first + row] * b_rows[k];
        }
      }
      for (int row = 0; row < kRows; ++row) {
        std::memcpy(&c[(first + row) * n + column], &sum[row], sizeof(Row));
      }
    }
  }
}

}  // namespace flashsmith::emulator
