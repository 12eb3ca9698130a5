// wgmma against a plain computation: layouts of the operands, all types, many N.
//
// Operands are counted in units of 16 bits: one element, or two of e4m3.
#pragma once

#include <iterator>

#include "device/harness.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/warpgroup.cuh"
#include "flashsmith/ptx/wgmma.cuh"

namespace wrappers::products {

constexpr int kM = 64, kSteps = 2, kK = 16 * kSteps;
constexpr int kBytesA = kM * 256, kBytesB = 256 * 256;

// The layout of an operand (rows, K) in shared memory.
struct Layout {
  Major major;
  Swizzle swizzle;
};

// Returns the byte offset of element (row, k), as drawn in the PTX ISA: lines of `width` bytes,
// whose 16-byte chunks are permuted by the line; without a swizzle, core matrices of eight 16-byte
// lines.
FLASHSMITH_DEVICE int place(const Layout &layout, int rows, int row, int k) {
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

FLASHSMITH_DEVICE MatrixDescriptor describe(const Layout &layout, shared_address start, int rows,
                                            int step) {
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

FLASHSMITH_DEVICE void fill(shared_address start, const Layout &layout, int rows,
                            const uint16_t *values) {
  for (int i = thread_index(); i < rows * kK / 2; i += kWarpgroupThreads) {
    // A word has two neighbours along the contiguous dimension.
    const int row = layout.major == Major::k ? i / (kK / 2) : i % (rows / 2) * 2;
    const int k = layout.major == Major::k ? i % (kK / 2) * 2 : i / (rows / 2);
    const int next = layout.major == Major::k ? row * kK + k + 1 : (row + 1) * kK + k;
    store_shared_4(start + place(layout, rows, row, k),
                   values[row * kK + k] | uint32_t{values[next]} << 16);
  }
}

template <typename value_t, int kN, Major kMajorA, Major kMajorB, bool kInRegisters>
struct Product {
  static constexpr int kThreads = kWarpgroupThreads;

  const uint16_t *a, *b;  // (kM, kK), (kN, kK)
  float *c;               // (kM, kN)
  Swizzle swizzle_a, swizzle_b;
  bool accumulate;

  FLASHSMITH_DEVICE void operator()() const {
    const shared_address at_a = shared_memory(), at_b = at_a + kBytesA;
    const Layout layout_a{kMajorA, swizzle_a}, layout_b{kMajorB, swizzle_b};
    if constexpr (!kInRegisters) fill(at_a, layout_a, kM, a);
    fill(at_b, layout_b, kN, b);
    fence_proxy_async();
    barrier_sync();
    float sums[kN / 2];
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sums[i] = c[index_of(i)];
    uint32_t fragments[kSteps][4];
    load(fragments);
    // No branch may stand between the fence and the last wgmma.
    MatrixDescriptor a_steps[kSteps], b_steps[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      a_steps[step] = describe(layout_a, at_a, kM, step);
      b_steps[step] = describe(layout_b, at_b, kN, step);
    }
    pin_registers(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if constexpr (kInRegisters) {
        wgmma_registers<value_t, kN, kMajorB>(sums, fragments[step], b_steps[step],
                                              accumulate || step > 0);
      } else {
        wgmma_shared<value_t, kN, kMajorA, kMajorB>(sums, a_steps[step], b_steps[step],
                                                    accumulate || step > 0);
      }
    }
    wgmma_commit_group();
    expect_poison(sums);
    wgmma_wait_group<0>();
    pin_registers(sums);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) c[index_of(i)] = sums[i];
  }

 private:
  static FLASHSMITH_DEVICE int row_of(int half) {
    return thread_index() / 32 * 16 + thread_index() % 32 / 4 + 8 * half;
  }
  static FLASHSMITH_DEVICE int index_of(int i) {
    return row_of(i / 2 % 2) * kN + i / 4 * 8 + thread_index() % 4 * 2 + i % 2;
  }
  FLASHSMITH_DEVICE void load(uint32_t (&fragments)[kSteps][4]) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint16_t *pair =
            &a[row_of(i % 2) * kK + step * 16 + thread_index() % 4 * 2 + i / 2 * 8];
        fragments[step][i] = pair[0] | uint32_t{pair[1]} << 16;
      }
    }
  }
};

// The units of e4m3 consist of these numbers, whose sums are exact; as numbers and as bytes.
constexpr float kSmall[] = {0, 1, 2, 3, -1, -2, -3, 0.5f};
constexpr uint8_t kSmallBytes[] = {0, 0x38, 0x40, 0x44, 0xb8, 0xc0, 0xc4, 0x30};

inline float value_of(uint8_t byte) {
  for (size_t i = 0; i < std::size(kSmall); ++i) {
    if (kSmallBytes[i] == byte) return kSmall[i];
  }
  return NAN;
}

inline float value_of(uint16_t bits, bool half) {  // normal numbers
  const int mantissa_bits = half ? 10 : 7;
  const float mantissa =
      static_cast<float>((bits & ((1 << mantissa_bits) - 1)) | 1 << mantissa_bits);
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  return std::ldexp(bits & 0x8000 ? -mantissa : mantissa,
                    exponent - (half ? 15 : 127) - mantissa_bits);
}

template <typename value_t>
float product_of(uint16_t a, uint16_t b) {
  if constexpr (is_e4m3<value_t>) {
    const auto byte = [](uint16_t unit, int i) {
      return value_of(static_cast<uint8_t>(unit >> 8 * i));
    };
    return byte(a, 0) * byte(b, 0) + byte(a, 1) * byte(b, 1);
  }
  return value_of(a, is_half<value_t>) * value_of(b, is_half<value_t>);
}

template <typename value_t>
Buffer<uint16_t> draw(int count, Random &random) {
  constexpr bool half = is_half<value_t>;
  Buffer<uint16_t> elements;
  for (int i = 0; is_e4m3<value_t> && i < count; ++i) {
    const auto byte = [&] { return kSmallBytes[random.bits() % std::size(kSmallBytes)]; };
    elements.push_back(static_cast<uint16_t>(byte() | byte() << 8));
  }
  if (is_e4m3<value_t>) return elements;
  const uint32_t base = half ? 0x3400 : 0x3E80;  // around 0.25
  for (int i = 0; i < count; ++i) {
    elements.push_back(static_cast<uint16_t>((random.bits() & (half ? 0x87FFu : 0x80FFu)) + base));
  }
  return elements;
}

template <typename value_t, int kN, Major kMajorA, Major kMajorB, bool kInRegisters>
void check(Results &results, Swizzle swizzle_a, Swizzle swizzle_b, bool accumulate) {
  constexpr const char *kName = is_e4m3<value_t> ? "e4m3" : is_half<value_t> ? "fp16" : "bf16";
  Random random(static_cast<uint64_t>(results.tested() + 1));
  Buffer<uint16_t> a = draw<value_t>(kM * kK, random), b = draw<value_t>(kN * kK, random);
  Buffer<float> c;
  for (int i = 0; i < kM * kN; ++i) {
    const float value = random.uniform();
    c.push_back(is_e4m3<value_t> ? std::floor(value * 8) : value);
  }
  const std::vector<float> before(c.begin(), c.end());
  run(Product<value_t, kN, kMajorA, kMajorB, kInRegisters>{a.data(), b.data(), c.data(), swizzle_a,
                                                           swizzle_b, accumulate},
      {.shared_bytes = kBytesA + kBytesB}, a, b, c);
  int wrong = -1;
  float expected_there = 0;
  for (int i = kM * kN - 1; i >= 0; --i) {
    float expected = accumulate ? before[static_cast<size_t>(i)] : 0, magnitude = kK;
    for (int k = 0; k < kK; ++k) {
      expected += product_of<value_t>(a[static_cast<size_t>(i / kN * kK + k)],
                                      b[static_cast<size_t>(i % kN * kK + k)]);
    }
    if (is_sum(c[static_cast<size_t>(i)], expected, magnitude)) continue;
    wrong = i;
    expected_there = expected;
  }
  results.check(
      wrong < 0,
      "%s, n %d, majors %d %d, swizzles %d %d, a in registers %d: c[%d][%d] is %a, not %a", kName,
      kN, static_cast<int>(kMajorA), static_cast<int>(kMajorB), static_cast<int>(swizzle_a),
      static_cast<int>(swizzle_b), kInRegisters, wrong / kN, wrong % kN,
      static_cast<double>(c[static_cast<size_t>(wrong < 0 ? 0 : wrong)]),
      static_cast<double>(expected_there));
}

constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes_32, Swizzle::bytes_64,
                                 Swizzle::bytes_128};

template <typename value_t, int kN, bool kInRegisters>
void check_layouts_of_b(Results &results) {
  for (Swizzle swizzle : kSwizzles) {
    check<value_t, kN, Major::k, Major::k, kInRegisters>(results, Swizzle::bytes_128, swizzle,
                                                         true);
    if (kN * 2 % row_bytes(swizzle) != 0) continue;
    check<value_t, kN, Major::k, Major::mn, kInRegisters>(results, Swizzle::bytes_64, swizzle,
                                                          false);
  }
}

template <typename value_t>
void check_layouts_of_a(Results &results) {
  for (Swizzle swizzle : kSwizzles) {
    check<value_t, 64, Major::k, Major::k, false>(results, swizzle, Swizzle::bytes_128, false);
    check<value_t, 64, Major::mn, Major::k, false>(results, swizzle, Swizzle::bytes_32, true);
    check<value_t, 64, Major::mn, Major::mn, false>(results, swizzle, Swizzle::bytes_64, false);
  }
}

template <int kN, bool kInRegisters>
void check_e4m3(Results &results) {
  for (Swizzle swizzle : kSwizzles) {
    check<e4m3_t, kN, Major::k, Major::k, kInRegisters>(results, swizzle, swizzle, true);
    check<e4m3_t, kN, Major::k, Major::k, kInRegisters>(results, Swizzle::bytes_128, swizzle,
                                                        false);
  }
}

// Checks all layouts of a, and all layouts of b for each N; the types alternate.
template <int... kN>
void check(Results &results) {
  check_layouts_of_a<bfloat16_t>(results);
  check_layouts_of_a<half_t>(results);
  (check_layouts_of_b<std::conditional_t<kN % 32 == 0, half_t, bfloat16_t>, kN, false>(results),
   ...);
  (check_layouts_of_b<std::conditional_t<kN % 32 == 0, bfloat16_t, half_t>, kN, true>(results),
   ...);
  (check_e4m3<kN, kN % 32 == 0>(results), ...);
}

}  // namespace wrappers::products
