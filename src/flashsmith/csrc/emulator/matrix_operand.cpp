#include "emulator/matrix_operand.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "emulator/elements.h"

namespace flashsmith::emulator {

namespace {

constexpr uint32_t kChunkBytes = 16, kCoreRows = 8;

uint32_t field(uint64_t bits, int first, int count) {
  return static_cast<uint32_t>(bits >> first & ((uint64_t{1} << count) - 1));
}

// The numbers of a chunk: 8, or 16 with e4m3.
using Values = float[kChunkBytes];

template <class Decode>
void decode_chunk(const uint8_t *bytes, Values &values, Decode decode) {
  uint16_t halves[kChunkBytes / 2];
  std::memcpy(halves, bytes, sizeof halves);
  for (unsigned i = 0; i < std::size(halves); i += kWidth) {
    const Words words{halves[i], halves[i + 1], halves[i + 2], halves[i + 3]};
    const Floats floats = decode(words);
    std::memcpy(&values[i], &floats, sizeof floats);
  }
}

void decode_chunk(const uint8_t *bytes, Values &values, MmaType type) {
  if (type == MmaType::f16) return decode_chunk(bytes, values, DecodeF16{});
  if (type == MmaType::bf16) return decode_chunk(bytes, values, DecodeBf16{});
  for (unsigned i = 0; i < kChunkBytes; ++i) values[i] = kE4m3[bytes[i]];
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
  // Eight rows form a core matrix; rows are as long as the swizzle, which permutes their chunks.
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

void read_operand(SharedMemory &shared, const AsyncAccess &access, uint64_t descriptor, int count,
                  bool mn_major, MmaType type, float *values) {
  const MatrixDescriptor matrix(descriptor);
  if (matrix.base_offset != 0) {
    throw Problem{0,
                  "a matrix descriptor with a base offset is not emulated: place the "
                  "matrix where its swizzle begins"};
  }
  const auto rows = static_cast<uint32_t>(count), n_k = static_cast<uint32_t>(wgmma_k(type));
  const uint32_t chunk_elements = kChunkBytes / static_cast<uint32_t>(bytes_of(type));
  Values chunk;
  const auto read_chunk = [&](uint32_t offset) {
    const uint8_t *bytes = shared.data() + offset;
    shared.read(access, shared.offset(bytes, kChunkBytes, 0), kChunkBytes);
    decode_chunk(bytes, chunk, type);
  };
  if (mn_major) {
    for (uint32_t k = 0; k < n_k; ++k) {
      for (uint32_t i = 0; i < rows / chunk_elements; ++i) {
        read_chunk(matrix.mn_major(i, k));
        std::copy_n(chunk, chunk_elements, &values[k * rows + i * chunk_elements]);
      }
    }
    return;
  }
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t i = 0; i < n_k / chunk_elements; ++i) {
      read_chunk(matrix.k_major(row, i));
      for (uint32_t j = 0; j < chunk_elements; ++j) {
        values[(i * chunk_elements + j) * rows + row] = chunk[j];
      }
    }
  }
}

void decode_word(uint32_t word, MmaType type, float *values, int stride) {
  if (type == MmaType::e4m3) {
    for (int i = 0; i < 4; ++i) values[i * stride] = kE4m3[word >> 8 * i & 0xFF];
    return;
  }
  const Words words{word & 0xFFFF, word >> 16, 0, 0};
  const Floats floats = type == MmaType::f16 ? DecodeF16{}(words) : DecodeBf16{}(words);
  values[0] = floats[0];
  values[stride] = floats[1];
}

// The clones are two or four times as fast on hosts with longer vectors, with equal results, as no
// product is fused with its sum (-ffp-contract=off).
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define FLASHSMITH_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FLASHSMITH_CLONES
#endif

FLASHSMITH_CLONES
void multiply_add(float *c, const float *a, const float *b, int n) {
  constexpr int kRows = 4, kColumns = 8;  // at a time: independent sums hide an addition's latency
  constexpr int kWgmmaK = wgmma_k(MmaType::f16);
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

FLASHSMITH_CLONES
void multiply_add_e4m3(float *c, const float *a, const float *b, int n) {
  constexpr int kColumns = 8, kWgmmaK = wgmma_k(MmaType::e4m3), kKept = 13;
  constexpr uint32_t kExponent = 0x7F800000, kMin = (kKept + 1) << 23, kUnit = 127 << 23;
  constexpr uint32_t kKeptBits = ~((1U << (23 - kKept)) - 1);
  typedef float Row __attribute__((vector_size(kColumns * sizeof(float))));
  typedef int32_t Numbers __attribute__((vector_size(kColumns * sizeof(int32_t))));
  typedef uint32_t Bits __attribute__((vector_size(kColumns * sizeof(uint32_t))));
  const auto magnitude = [](Row row) { return reinterpret_cast<Bits>(row) & 0x7FFFFFFF; };
  for (int column = 0; column < n; column += kColumns) {
    for (int row = 0; row < kWgmmaM; ++row) {
      Row sum, plain;
      std::memcpy(&sum, &c[row * n + column], sizeof(Row));
      plain = sum;
      Bits largest = magnitude(sum);
      for (int k = 0; k < kWgmmaK; ++k) {
        Row b_row;
        std::memcpy(&b_row, &b[k * n + column], sizeof(Row));
        const Row product = a[k * kWgmmaM + row] * b_row;
        const Bits bits = magnitude(product);
        largest = bits > largest ? bits : largest;
        plain += product;
      }
      // Numbers are counted in units of 2^-kKept of the leading bit of the largest.
      Bits exponent = largest & kExponent;
      const auto is_finite = exponent != kExponent;
      exponent = exponent < kMin ? Bits{} + kMin : exponent;
      const Row unit = reinterpret_cast<Row>(exponent - (kKept << 23));
      const Row inverse = reinterpret_cast<Row>(2 * kUnit + (kKept << 23) - exponent);
      const auto units = [&](Row row) {
        const Row of_finite = is_finite ? row * inverse : Row{};
        return __builtin_convertvector(of_finite, Numbers);
      };
      Numbers total = units(sum);
      for (int k = 0; k < kWgmmaK; ++k) {
        Row b_row;
        std::memcpy(&b_row, &b[k * n + column], sizeof(Row));
        total += units(a[k * kWgmmaM + row] * b_row);
      }
      const Row aligned = __builtin_convertvector(total, Row) * unit;
      const Row rough = reinterpret_cast<Row>(reinterpret_cast<Bits>(aligned) & kKeptBits);
      sum = is_finite ? rough : plain;
      std::memcpy(&c[row * n + column], &sum, sizeof(Row));
    }
  }
}

}  // namespace flashsmith::emulator
