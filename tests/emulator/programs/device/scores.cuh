// Instructions that change scores, against plain computations: loads of single elements of global
// memory, their conversion, the hyperbolic tangent.
#pragma once

#include "device/harness.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"

namespace wrappers::scores {

// The last threads return early; the threads before them read opposite elements.
struct Elements {
  static constexpr int kThreads = 64, kReaders = 61;

  const uint16_t *halves;
  const float *words;
  uint32_t *got_halves, *got_words;

  FLASHSMITH_DEVICE void operator()() const {
    const int thread = thread_index();
    if (thread >= kReaders) return;
    const int opposite = kReaders - 1 - thread;
    thread_store_global_4(&got_halves[thread], thread_load_global(halves + opposite));
    thread_store_global_4(&got_words[thread], float_bits(thread_load_global(words + opposite)));
  }
};

inline void check_elements(Results &results) {
  constexpr size_t kCount = Elements::kReaders;
  Buffer<uint16_t> halves;
  Buffer<float> words;
  for (size_t i = 0; i < kCount; ++i) {
    halves.push_back(static_cast<uint16_t>(65000 - i));
    words.push_back(1.5f + static_cast<float>(i));
  }
  Buffer<uint32_t> got_halves(kCount), got_words(kCount);
  run(Elements{halves.data(), words.data(), got_halves.data(), got_words.data()},
      {.shared_bytes = 0}, halves, words, got_halves, got_words);
  int wrong_halves = 0, wrong_words = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const size_t opposite = kCount - 1 - i;
    wrong_halves += got_halves[i] != halves[opposite];
    wrong_words += got_words[i] != float_bits(words[opposite]);
  }
  results.check(wrong_halves == 0, "thread_load_global of 2 bytes: %d are wrong", wrong_halves);
  results.check(wrong_words == 0, "thread_load_global of 4 bytes: %d are wrong", wrong_words);
}

// Converts every number of 16 bits.
struct Unpack {
  static constexpr int kThreads = 256, kCount = 1 << 16;

  float *halves, *bfloats;

  FLASHSMITH_DEVICE void operator()() const {
    for (int i = thread_index(); i < kCount; i += kThreads) {
      halves[i] = unpack<half_t>(static_cast<uint16_t>(i));
      bfloats[i] = unpack<bfloat16_t>(static_cast<uint16_t>(i));
    }
  }
};

// Follows the definition of the formats.
inline double value_of(uint32_t bits, bool half) {
  const int mantissa_bits = half ? 10 : 7, bias = half ? 15 : 127;
  const int exponent = static_cast<int>(bits & 0x7FFF) >> mantissa_bits;
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 2 * bias + 1) return mantissa ? NAN : sign * INFINITY;
  const int implicit = exponent == 0 ? 0 : 1 << mantissa_bits;
  return sign *
         std::ldexp(mantissa + implicit, (exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
}

inline void check_unpack(Results &results) {
  Buffer<float> halves(Unpack::kCount), bfloats(Unpack::kCount);
  run(Unpack{halves.data(), bfloats.data()}, {.shared_bytes = 0}, halves, bfloats);
  const auto wrong = [](const Buffer<float> &got, bool half) {
    int wrong = 0;
    for (uint32_t i = 0; i < Unpack::kCount; ++i) {
      const double value = value_of(i, half);
      wrong += std::isnan(value) ? !std::isnan(got[i])
                                 : value != got[i] || std::signbit(value) != std::signbit(got[i]);
    }
    return wrong;
  };
  results.check(wrong(halves, true) == 0, "unpack of fp16: %d are wrong", wrong(halves, true));
  results.check(wrong(bfloats, false) == 0, "unpack of bf16: %d are wrong", wrong(bfloats, false));
}

struct Tanh {
  static constexpr int kThreads = 256;

  const float *x;
  float *positive, *negative;
  int count;

  FLASHSMITH_DEVICE void operator()() const {
    for (int i = thread_index(); i < count; i += kThreads) {
      positive[i] = tanh_approx(x[i]);
      negative[i] = tanh_approx(-x[i]);
    }
  }
};

inline void check_tanh(Results &results) {
  Buffer<float> x = {0, INFINITY, NAN};
  Random random(7);
  for (int i = 0; i < 4096; ++i) {
    x.push_back(
        std::ldexp(1 + std::fabs(random.uniform()), static_cast<int>(random.bits() % 24) - 18));
  }
  Buffer<float> positive(x.size()), negative(x.size());
  run(Tanh{x.data(), positive.data(), negative.data(), static_cast<int>(x.size())},
      {.shared_bytes = 0}, x, positive, negative);
  results.check(positive[0] == 0 && negative[0] == 0 && std::signbit(negative[0]),
                "tanh_approx of 0 is %g, of -0 %g", positive[0], negative[0]);
  results.check(positive[1] == 1 && negative[1] == -1, "tanh_approx of inf is %g, of -inf %g",
                positive[1], negative[1]);
  results.check(std::isnan(positive[2]), "tanh_approx of NaN is %g", positive[2]);
  int wrong = 0, odd = 0;
  for (size_t i = 3; i < x.size(); ++i) {
    const double exact = std::tanh(static_cast<double>(x[i]));
    wrong += std::fabs(positive[i] - exact) > exact * 0x1.02p-11;
    odd += negative[i] != -positive[i];
  }
  results.check(wrong == 0, "tanh_approx: %d are off by more than 2^-11", wrong);
  results.check(odd == 0, "tanh_approx: %d differ from that of -x", odd);
}

struct Products {
  static constexpr int kThreads = 256;

  const float *x, *y;
  float *product;
  int count;

  FLASHSMITH_DEVICE void operator()() const {
    for (int i = thread_index(); i < count; i += kThreads) product[i] = mul_rz(x[i], y[i]);
  }
};

// Returns the last float that is not beyond the exact product, which a double holds.
inline float towards_zero(float x, float y) {
  const double exact = static_cast<double>(x) * y;
  if (std::isinf(exact) || std::isnan(exact)) return static_cast<float>(exact);
  uint32_t low = 0, high = 0x7f7fffff;  // the bits of positive numbers are ordered as the numbers
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (static_cast<double>(bits_float(middle)) <= std::fabs(exact))
      low = middle;
    else
      high = middle - 1;
  }
  return std::copysign(bits_float(low), static_cast<float>(std::copysign(1.0, exact)));
}

inline void check_products(Results &results) {
  Buffer<float> x = {0, INFINITY, NAN, 0x1.fep127f, 0x1.fep127f, -0x1.fep127f, 0x1p-126f},
                y = {1, 2, 1, 1.5f, 1, 1.5f, 0.75f};
  Random random(11);
  while (x.size() < 4096) {
    x.push_back(bits_float(random.bits()));
    y.push_back(x.size() % 2 ? 1.4426950408889634f : bits_float(random.bits()));
  }
  Buffer<float> product(x.size());
  run(Products{x.data(), y.data(), product.data(), static_cast<int>(x.size())}, {.shared_bytes = 0},
      x, y, product);
  int wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float expected = towards_zero(x[i], y[i]);
    wrong += std::isnan(expected) ? !std::isnan(product[i])
                                  : float_bits(expected) != float_bits(product[i]);
  }
  results.check(wrong == 0, "mul_rz: %d are wrong", wrong);
}

inline void check(Results &results) {
  check_products(results);
  check_elements(results);
  check_unpack(results);
  check_tanh(results);
}

}  // namespace wrappers::scores
