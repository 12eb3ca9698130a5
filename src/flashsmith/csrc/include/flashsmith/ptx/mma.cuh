// Tensor core instructions of sm_80, and fragment loads and stores.
// PTX ISA, Warp Level Matrix Multiply-Accumulate Instructions: ldmatrix, mma.m16n8k16.
#pragma once

#include "flashsmith/ptx/platform.cuh"
#include "flashsmith/types.cuh"

namespace flashsmith::ptx {

// ldmatrix.m8n8.x4: loads four 8x8 matrices of 16-bit elements. Lane 8*i + r gives the address of
// row r of matrix i; register i of lane l then holds elements 2*(l%4), 2*(l%4)+1 of row l/4 of
// matrix i, or, transposed, of column l/4. The asm is volatile, because the same address holds
// other data after a barrier.
template <bool kTransposed>
FLASHSMITH_DEVICE void ldmatrix_x4(uint32_t (&fragment)[4], shared_address row) {
#ifdef FLASHSMITH_EMULATOR
  emulator::ldmatrix_x4(fragment, pointer(row), kTransposed);
#else
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row));
  }
#endif
}

// stmatrix.m8n8.x4 (sm_90): the inverse of ldmatrix_x4<false>. PTX ISA, Data Movement: stmatrix.
FLASHSMITH_DEVICE void stmatrix_x4(shared_address row, const uint32_t (&fragment)[4]) {
#ifdef FLASHSMITH_EMULATOR
  emulator::stmatrix_x4(pointer(row), fragment);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
#endif
}

// mma.m16n8k16.row.col with fp32 accumulators: c += a * b.
template <typename value_t>
FLASHSMITH_DEVICE void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t &b0,
                                    const uint32_t &b1) {
#ifdef FLASHSMITH_EMULATOR
  emulator::mma_m16n8k16(c, a, b0, b1,
                         is_half<value_t> ? emulator::MmaType::f16 : emulator::MmaType::bf16);
#else
  if constexpr (is_half<value_t>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

}  // namespace flashsmith::ptx
