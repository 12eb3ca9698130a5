// wgmma against a plain computation: every operand layout, both types, many N.
#include <cmath>

#include "cases.h"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/wgmma.cuh"

namespace cases {

namespace {

using namespace flashsmith;
using namespace flashsmith::ptx;
using ptx::shared_memory, ptx::thread_index;  // not the emulator's

constexpr int kM = 64, kSteps = 2, kK = 16 * kSteps;
constexpr int kBytesA = kM * 256, kBytesB = 256 * 256;

// How an operand (K, rows) lies in shared memory.
struct Layout {
  Major major;
  Swizzle swizzle;
};

// The byte of element (row, k), by the pictures of the PTX ISA: tiles of `width` bytes a line,
// whose 16-byte chunks are permuted by the line; without a swizzle, core matrices of eight 16-byte
// lines.
int place(const Layout &layout, int rows, int row, int k) {
  const int line = layout.major == Major::k ? row : k;   // across the contiguous dimension
  const int along = layout.major == Major::k ? k : row;  // along it
  const int lines = layout.major == Major::k ? rows : kK;
  if (layout.swizzle == Swizzle::none) {
    const int cores = lines / 8;
    return (along / 8 * cores + line / 8) * 128 + line % 8 * 16 + along % 8 * 2;
  }
  const int width = row_bytes(layout.swizzle), chunks = width / 16;
  const int tile = along * 2 / width, chunk = along * 2 % width / 16;
  const int shift = 8 / chunks;  // lines that share a permutation: 128 bytes
  return tile * lines * width + line * width + (chunk ^ (line / shift % chunks)) * 16 +
         along * 2 % 16;
}

MatrixDescriptor describe(const Layout &layout, shared_address start, int rows, int step) {
  const int width = row_bytes(layout.swizzle);
  if (layout.major == Major::k) {
    if (layout.swizzle == Swizzle::none) {
      return matrix_descriptor(start + step * 2 * rows * 16, rows * 16, 128, layout.swizzle);
    }
    const int tile = step * 32 / width, within = step * 32 % width;
    return advance(k_major_descriptor(start + tile * rows * width, layout.swizzle), within);
  }
  if (layout.swizzle == Swizzle::none) {
    return matrix_descriptor(start + step * 256, 128, kK / 8 * 128, layout.swizzle);
  }
  return mn_major_descriptor(start + step * 16 * width, layout.swizzle, kK * width);
}

struct Operands {
  std::vector<uint16_t> a, b;  // (kM, kK), (n, kK)
  std::vector<float> c;        // (kM, n)
};

void fill(shared_address start, const Layout &layout, int rows, const uint16_t *values) {
  for (int i = thread_index(); i < rows * kK / 2; i += 128) {
    // Pairs of neighbours along the contiguous dimension.
    const int row = layout.major == Major::k ? i / (kK / 2) : i % (rows / 2) * 2;
    const int k = layout.major == Major::k ? i % (kK / 2) * 2 : i / (rows / 2);
    const int next = layout.major == Major::k ? row * kK + k + 1 : (row + 1) * kK + k;
    store_shared_4(start + place(layout, rows, row, k),
                   values[row * kK + k] | uint32_t{values[next]} << 16);
  }
}

template <typename value_t, int kN, Major kMajorA, Major kMajorB>
void kernel(Operands &operands, Swizzle swizzle_a, Swizzle swizzle_b, bool a_in_registers,
            bool accumulate) {
  const shared_address a = shared_memory(), b = a + kBytesA;
  const Layout layout_a{kMajorA, swizzle_a}, layout_b{kMajorB, swizzle_b};
  fill(a, layout_a, kM, operands.a.data());
  fill(b, layout_b, kN, operands.b.data());
  fence_proxy_async();
  barrier_sync();
  const int warp = thread_index() / 32, lane = thread_index() % 32;
  const auto row_of = [&](int h) { return warp * 16 + lane / 4 + 8 * h; };
  float c[kN / 2];
  const auto at = [&](int i) -> float & {
    return operands.c[row_of(i / 2 % 2) * kN + i / 4 * 8 + lane % 4 * 2 + i % 2];
  };
  for (int i = 0; i < kN / 2; ++i) c[i] = at(i);
  uint32_t fragments[kSteps][4];
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < 4; ++i) {
      const int k = step * 16 + lane % 4 * 2 + i / 2 * 8;
      std::memcpy(&fragments[step][i], &operands.a[row_of(i % 2) * kK + k], 4);
    }
  }
  wgmma_fence();
  for (int step = 0; step < kSteps; ++step) {
    const MatrixDescriptor b_step = describe(layout_b, b, kN, step);
    if (a_in_registers) {
      wgmma_registers<value_t, kN, kMajorB>(c, fragments[step], b_step, accumulate || step > 0);
    } else {
      wgmma_shared<value_t, kN, kMajorA, kMajorB>(c, describe(layout_a, a, kM, step), b_step,
                                                  accumulate || step > 0);
    }
  }
  wgmma_commit_group();
  for (float x : c) {
    if (!std::isnan(x)) fail("an accumulator shows %g before the wait", x);
  }
  wgmma_wait_group<0>();
  for (int i = 0; i < kN / 2; ++i) at(i) = c[i];
}

float value_of(uint16_t bits, bool half) {  // normal numbers
  const int mantissa_bits = half ? 10 : 7;
  const float mantissa =
      static_cast<float>((bits & ((1 << mantissa_bits) - 1)) | 1 << mantissa_bits);
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  return std::ldexp(bits & 0x8000 ? -mantissa : mantissa,
                    exponent - (half ? 15 : 127) - mantissa_bits);
}

Operands draw(int n, bool half, uint64_t seed) {
  Random random(seed);
  Operands operands;
  const uint16_t base = half ? 0x3400 : 0x3E80;  // around 0.25
  const auto element = [&] {
    return static_cast<uint16_t>((random.bits() & (half ? 0x87FF : 0x80FF)) + base);
  };
  for (int i = 0; i < kM * kK; ++i) operands.a.push_back(element());
  for (int i = 0; i < n * kK; ++i) operands.b.push_back(element());
  for (int i = 0; i < kM * n; ++i) operands.c.push_back(random.uniform());
  return operands;
}

int tested = 0;

template <typename value_t, int kN, Major kMajorA, Major kMajorB>
void check(Swizzle swizzle_a, Swizzle swizzle_b, bool a_in_registers, bool accumulate) {
  constexpr bool kHalf = is_half<value_t>;
  Operands operands = draw(kN, kHalf, static_cast<uint64_t>(++tested));
  const Operands before = operands;
  launch({.kernel = "wgmma",
          .grid = {},
          .threads = 128,
          .shared_memory_bytes = kBytesA + kBytesB,
          .memory = {},
          .body =
              [&] {
                kernel<value_t, kN, kMajorA, kMajorB>(operands, swizzle_a, swizzle_b,
                                                      a_in_registers, accumulate);
              }},
         {.seed = static_cast<uint64_t>(tested), .workers = 1});
  for (int row = 0; row < kM; ++row) {
    for (int column = 0; column < kN; ++column) {
      float expected = accumulate ? before.c[row * kN + column] : 0;
      for (int k = 0; k < kK; ++k) {
        expected +=
            value_of(before.a[row * kK + k], kHalf) * value_of(before.b[column * kK + k], kHalf);
      }
      const float got = operands.c[row * kN + column];
      if (got != expected) {
        fail("n %d, majors %d %d, swizzles %d %d, registers %d: c[%d][%d] is %a, not %a", kN,
             static_cast<int>(kMajorA), static_cast<int>(kMajorB), static_cast<int>(swizzle_a),
             static_cast<int>(swizzle_b), a_in_registers, row, column, got, expected);
      }
    }
  }
}

constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes_32, Swizzle::bytes_64,
                                 Swizzle::bytes_128};

// B in all its layouts, a in registers or not.
template <typename value_t, int kN>
void check_layouts_of_b() {
  for (Swizzle swizzle : kSwizzles) {
    for (bool a_in_registers : {false, true}) {
      check<value_t, kN, Major::k, Major::k>(Swizzle::bytes_128, swizzle, a_in_registers, true);
      if (kN * 2 % row_bytes(swizzle) != 0) continue;
      check<value_t, kN, Major::k, Major::mn>(Swizzle::bytes_64, swizzle, a_in_registers, false);
    }
  }
}

template <typename value_t>
void check_layouts_of_a() {
  for (Swizzle swizzle : kSwizzles) {
    check<value_t, 64, Major::k, Major::k>(swizzle, Swizzle::bytes_128, false, false);
    check<value_t, 64, Major::mn, Major::k>(swizzle, Swizzle::bytes_32, false, true);
    check<value_t, 64, Major::mn, Major::mn>(swizzle, Swizzle::bytes_64, false, false);
  }
}

}  // namespace

void hopper_products() {
  check_layouts_of_a<bfloat16_t>();
  check_layouts_of_a<half_t>();
  check_layouts_of_b<half_t, 64>();
  check_layouts_of_b<bfloat16_t, 16>();
  check_layouts_of_b<bfloat16_t, 96>();
  check_layouts_of_b<half_t, 176>();
  check_layouts_of_b<bfloat16_t, 256>();
  std::printf("{\"tested\": %d}\n", tested);
}

}  // namespace cases
