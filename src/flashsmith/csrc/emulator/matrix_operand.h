// Operands of wgmma in shared memory: the offsets of their elements, and their values.
#pragma once

#include <cstdint>

#include "emulator/device.h"
#include "emulator/shared_memory.h"
#include "emulator/tensor_map.h"

namespace flashsmith::emulator {

// PTX ISA, Asynchronous Warpgroup Level Matrix Shared Memory Layout: Matrix Descriptor.
struct MatrixDescriptor {
  uint32_t start, leading_bytes, stride_bytes;  // offsets in shared memory
  uint32_t base_offset;
  Swizzle swizzle;

  explicit MatrixDescriptor(uint64_t bits);

  // Returns the offset of 16 bytes of consecutive elements, K-major: chunk `chunk` of the K
  // dimension in row `row` of the other dimension.
  uint32_t k_major(uint32_t row, uint32_t chunk) const;
  // Returns the same, MN-major: elements 8 * chunk to 8 * chunk + 7 of the other dimension at k.
  uint32_t mn_major(uint32_t chunk, uint32_t k) const;
};

constexpr int kWgmmaM = 64, kWgmmaMaxK = 32, kWgmmaMaxN = 256, kWgmmaKBytes = 32;

constexpr int bytes_of(MmaType type) { return type == MmaType::e4m3 ? 1 : 2; }
constexpr int wgmma_k(MmaType type) { return kWgmmaKBytes / bytes_of(type); }

// Reads the k x `rows` operand to values[k * rows + row].
void read_operand(SharedMemory &shared, const AsyncAccess &access, uint64_t descriptor, int rows,
                  bool mn_major, MmaType type, float *values);

// Computes c (64, n) += a^T b in the order of k, with a (16, 64) and b (16, n).
void multiply_add(float *c, const float *a, const float *b, int n);

// Computes the same with a (32, 64) and b (32, n), in the rough sums of e4m3.
void multiply_add_e4m3(float *c, const float *a, const float *b, int n);

// Decodes the elements of a register, two or four, to values[i * stride].
void decode_word(uint32_t word, MmaType type, float *values, int stride);

}  // namespace flashsmith::emulator
