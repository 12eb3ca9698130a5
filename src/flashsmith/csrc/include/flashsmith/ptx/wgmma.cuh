// Matrix instructions of a warpgroup. PTX ISA, Asynchronous Warpgroup Level Matrix Instructions:
// wgmma.mma_async.m64nNk16, and m64nNk32 of e4m3, with fp32 accumulators. All four warps of the
// warpgroup execute them.
//
// The accumulators of lane l of warp w are
//
//    c[4 * j + 2 * h + i] = C[16 * w + l / 4 + 8 * h][8 * j + 2 * (l % 4) + i]
//
// Neither they nor registers of A may be touched until a wait has covered the instruction.
#pragma once

#include <type_traits>

#include "flashsmith/ptx/matrix_descriptor.cuh"
#include "flashsmith/ptx/platform.cuh"
#include "flashsmith/types.cuh"

#ifndef FLASHSMITH_EMULATOR
#include "flashsmith/ptx/wgmma_shapes.cuh"

#define FLASHSMITH_WGMMA(TYPE, N, K, REGISTERS, A, B, ACCUMULATE, TRANSPOSED)                \
  "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %" #ACCUMULATE                         \
  ", 0;\n"                                                                                   \
  "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPE "." TYPE " {" REGISTERS "}, " A \
  ", %" #B ", accumulate, 1, 1" TRANSPOSED ";\n}\n"
#define FLASHSMITH_WGMMA_SHARED(TYPE, N, A, B, S, TA, TB)                                        \
  asm volatile(FLASHSMITH_WGMMA(TYPE, N, 16, FLASHSMITH_R##A, "%" #A, B, S, ", %" #TA ", %" #TB) \
               : FLASHSMITH_C##A                                                                 \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kMajorA == Major::mn),   \
                 "n"(kMajorB == Major::mn))
#define FLASHSMITH_WGMMA_REGISTERS(TYPE, N, A0, A1, A2, A3, B, S, TB)                        \
  asm volatile(FLASHSMITH_WGMMA(TYPE, N, 16, FLASHSMITH_R##A0,                               \
                                "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}", B, S, ", %" #TB) \
               : FLASHSMITH_C##A0                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                         \
                 "r"(static_cast<int>(accumulate)), "n"(kMajorB == Major::mn))
// FP8 operands have only one layout, without transposition.
#define FLASHSMITH_WGMMA_SHARED_E4M3(N, A, B, S)                                  \
  asm volatile(FLASHSMITH_WGMMA("e4m3", N, 32, FLASHSMITH_R##A, "%" #A, B, S, "") \
               : FLASHSMITH_C##A                                                  \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
#define FLASHSMITH_WGMMA_REGISTERS_E4M3(N, A0, A1, A2, A3, B, S)                      \
  asm volatile(FLASHSMITH_WGMMA("e4m3", N, 32, FLASHSMITH_R##A0,                      \
                                "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}", B, S, "") \
               : FLASHSMITH_C##A0                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                  \
                 "r"(static_cast<int>(accumulate)))
#define FLASHSMITH_SHARED_CASE(N, A, B, S, TA, TB, ...)  \
  if constexpr (kN == N && is_e4m3<value_t>) {           \
    FLASHSMITH_WGMMA_SHARED_E4M3(N, A, B, S);            \
  } else if constexpr (kN == N && is_half<value_t>) {    \
    FLASHSMITH_WGMMA_SHARED("f16", N, A, B, S, TA, TB);  \
  } else if constexpr (kN == N) {                        \
    FLASHSMITH_WGMMA_SHARED("bf16", N, A, B, S, TA, TB); \
  }
#define FLASHSMITH_REGISTERS_CASE(N, A0, A1, A2, A3, B, S, TB)       \
  if constexpr (kN == N && is_e4m3<value_t>) {                       \
    FLASHSMITH_WGMMA_REGISTERS_E4M3(N, A0, A1, A2, A3, B, S);        \
  } else if constexpr (kN == N && is_half<value_t>) {                \
    FLASHSMITH_WGMMA_REGISTERS("f16", N, A0, A1, A2, A3, B, S, TB);  \
  } else if constexpr (kN == N) {                                    \
    FLASHSMITH_WGMMA_REGISTERS("bf16", N, A0, A1, A2, A3, B, S, TB); \
  }
#endif

namespace flashsmith::ptx {

template <int kN>
constexpr bool is_wgmma_n = kN >= 16 && kN <= 256 && kN % 16 == 0;

#ifdef FLASHSMITH_EMULATOR
template <typename value_t>
constexpr emulator::MmaType kMmaType = is_e4m3<value_t>   ? emulator::MmaType::e4m3
                                       : is_half<value_t> ? emulator::MmaType::f16
                                                          : emulator::MmaType::bf16;
#endif

// Computes c += a * b, or c = a * b with `accumulate` false: a (64, K) and b (K, kN) are in shared
// memory.
template <typename value_t, int kN, Major kMajorA, Major kMajorB>
FLASHSMITH_DEVICE void wgmma_shared(float (&c)[kN / 2], MatrixDescriptor a, MatrixDescriptor b,
                                    bool accumulate) {
  static_assert(is_wgmma_n<kN>, "N is a multiple of 16 up to 256 here");
  static_assert(!is_e4m3<value_t> || (kMajorA == Major::k && kMajorB == Major::k),
                "K is contiguous in operands of 8 bits");
#ifdef FLASHSMITH_EMULATOR
  emulator::wgmma({.c = c,
                   .a_registers = nullptr,
                   .a = a,
                   .b = b,
                   .n = kN,
                   .type = kMmaType<value_t>,
                   .a_mn_major = kMajorA == Major::mn,
                   .b_mn_major = kMajorB == Major::mn,
                   .accumulate = accumulate});
#else
  FLASHSMITH_WGMMA_SHAPES(FLASHSMITH_SHARED_CASE)
#endif
}

// Computes the same with a in registers, which have the layout of the accumulators of two
// neighbouring groups of eight columns: a[0], a[1] are columns 2p, 2p + 1 of rows g, g + 8; a[2],
// a[3] are columns 2p + 8, 2p + 9. With e4m3 a word has four columns: a[0], a[1] from column 4p on,
// a[2], a[3] from 4p + 16.
template <typename value_t, int kN, Major kMajorB>
FLASHSMITH_DEVICE void wgmma_registers(float (&c)[kN / 2], const uint32_t (&a)[4],
                                       MatrixDescriptor b, bool accumulate) {
  static_assert(is_wgmma_n<kN>, "N is a multiple of 16 up to 256 here");
  static_assert(!is_e4m3<value_t> || kMajorB == Major::k, "K is contiguous in operands of 8 bits");
#ifdef FLASHSMITH_EMULATOR
  emulator::wgmma({.c = c,
                   .a_registers = a,
                   .a = 0,
                   .b = b,
                   .n = kN,
                   .type = kMmaType<value_t>,
                   .a_mn_major = false,
                   .b_mn_major = kMajorB == Major::mn,
                   .accumulate = accumulate});
#else
  FLASHSMITH_WGMMA_SHAPES(FLASHSMITH_REGISTERS_CASE)
#endif
}

// wgmma.fence: from here on wgmma may use registers that the kernel has touched.
FLASHSMITH_DEVICE void wgmma_fence(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::wgmma_fence(where);
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Emits no instruction, but keeps the compiler from moving ordinary accesses of these registers
// across this point. The compiler believes that wgmma writes its accumulators at once, and might
// use them before the wait.
template <typename register_t, int kCount>
FLASHSMITH_DEVICE void pin_registers([[maybe_unused]] register_t (&registers)[kCount]) {
#ifndef FLASHSMITH_EMULATOR
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<register_t, float>) {
      asm volatile("" : "+f"(registers[i])::"memory");
    } else {
      asm volatile("" : "+r"(registers[i])::"memory");
    }
  }
#endif
}

// wgmma.commit_group: the instructions issued since the last commit become one group.
FLASHSMITH_DEVICE void wgmma_commit_group(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::wgmma_commit_group(where);
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// wgmma.wait_group: waits until all groups but the newest kPending have completed.
template <int kPending>
FLASHSMITH_DEVICE void wgmma_wait_group(FLASHSMITH_CALL_SITE) {
  static_assert(kPending >= 0 && kPending <= 7, "wgmma leaves 0 to 7 groups in flight");
#ifdef FLASHSMITH_EMULATOR
  emulator::wgmma_wait_group(kPending, where);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace flashsmith::ptx

#ifndef FLASHSMITH_EMULATOR
#undef FLASHSMITH_WGMMA
#undef FLASHSMITH_WGMMA_SHARED
#undef FLASHSMITH_WGMMA_REGISTERS
#undef FLASHSMITH_WGMMA_SHARED_E4M3
#undef FLASHSMITH_WGMMA_REGISTERS_E4M3
#undef FLASHSMITH_SHARED_CASE
#undef FLASHSMITH_REGISTERS_CASE
#endif
