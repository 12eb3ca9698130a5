// Fragment stores that transpose. PTX ISA, Data Movement: stmatrix with .trans (sm_90).
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// stmatrix.m8n8.x4.trans: the inverse of ldmatrix_x4<true> (mma.cuh). Register i of lane l has
// elements 2*(l%4), 2*(l%4)+1 of column l/4 of matrix i.
FLASHSMITH_DEVICE void stmatrix_x4_transposed(shared_address row, const uint32_t (&fragment)[4]) {
#ifdef FLASHSMITH_EMULATOR
  emulator::stmatrix_x4(pointer(row), fragment, true);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
#endif
}

}  // namespace flashsmith::ptx
