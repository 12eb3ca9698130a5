// The text of wgmma's register lists, for wgmma.cuh.
//
// FLASHSMITH_Rn names registers 0 to n - 1, FLASHSMITH_Cn binds c[0] to c[n - 1] to them.
// FLASHSMITH_WGMMA_SHAPES(X) is X(N, the indices of the seven operands after the registers) for
// each N; the first index is also the number of registers.
#pragma once

#define FLASHSMITH_C(i)                                                                       \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])

// clang-format off
#define FLASHSMITH_R8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FLASHSMITH_R16 FLASHSMITH_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FLASHSMITH_R24 FLASHSMITH_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FLASHSMITH_R32 FLASHSMITH_R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHSMITH_R40 FLASHSMITH_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FLASHSMITH_R48 FLASHSMITH_R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FLASHSMITH_R56 FLASHSMITH_R48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FLASHSMITH_R64 FLASHSMITH_R56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FLASHSMITH_R72 FLASHSMITH_R64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FLASHSMITH_R80 FLASHSMITH_R72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define FLASHSMITH_R88 FLASHSMITH_R80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FLASHSMITH_R96 FLASHSMITH_R88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FLASHSMITH_R104 FLASHSMITH_R96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define FLASHSMITH_R112 FLASHSMITH_R104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define FLASHSMITH_R120 FLASHSMITH_R112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define FLASHSMITH_R128 FLASHSMITH_R120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define FLASHSMITH_C8 FLASHSMITH_C(0)
#define FLASHSMITH_C16 FLASHSMITH_C8, FLASHSMITH_C(8)
#define FLASHSMITH_C24 FLASHSMITH_C16, FLASHSMITH_C(16)
#define FLASHSMITH_C32 FLASHSMITH_C24, FLASHSMITH_C(24)
#define FLASHSMITH_C40 FLASHSMITH_C32, FLASHSMITH_C(32)
#define FLASHSMITH_C48 FLASHSMITH_C40, FLASHSMITH_C(40)
#define FLASHSMITH_C56 FLASHSMITH_C48, FLASHSMITH_C(48)
#define FLASHSMITH_C64 FLASHSMITH_C56, FLASHSMITH_C(56)
#define FLASHSMITH_C72 FLASHSMITH_C64, FLASHSMITH_C(64)
#define FLASHSMITH_C80 FLASHSMITH_C72, FLASHSMITH_C(72)
#define FLASHSMITH_C88 FLASHSMITH_C80, FLASHSMITH_C(80)
#define FLASHSMITH_C96 FLASHSMITH_C88, FLASHSMITH_C(88)
#define FLASHSMITH_C104 FLASHSMITH_C96, FLASHSMITH_C(96)
#define FLASHSMITH_C112 FLASHSMITH_C104, FLASHSMITH_C(104)
#define FLASHSMITH_C120 FLASHSMITH_C112, FLASHSMITH_C(112)
#define FLASHSMITH_C128 FLASHSMITH_C120, FLASHSMITH_C(120)

#define FLASHSMITH_WGMMA_SHAPES(X) \
  X(16, 8, 9, 10, 11, 12, 13, 14) \
  X(32, 16, 17, 18, 19, 20, 21, 22) \
  X(48, 24, 25, 26, 27, 28, 29, 30) \
  X(64, 32, 33, 34, 35, 36, 37, 38) \
  X(80, 40, 41, 42, 43, 44, 45, 46) \
  X(96, 48, 49, 50, 51, 52, 53, 54) \
  X(112, 56, 57, 58, 59, 60, 61, 62) \
  X(128, 64, 65, 66, 67, 68, 69, 70) \
  X(144, 72, 73, 74, 75, 76, 77, 78) \
  X(160, 80, 81, 82, 83, 84, 85, 86) \
  X(176, 88, 89, 90, 91, 92, 93, 94) \
  X(192, 96, 97, 98, 99, 100, 101, 102) \
  X(208, 104, 105, 106, 107, 108, 109, 110) \
  X(224, 112, 113, 114, 115, 116, 117, 118) \
  X(240, 120, 121, 122, 123, 124, 125, 126) \
  X(256, 128, 129, 130, 131, 132, 133, 134)
// clang-format on
