// Bytes and the numbers in them against plain computations: of all 256, in every place of a word.
#pragma once

#include "device/scores.cuh"
#include "flashsmith/attention/e4m3.cuh"

namespace wrappers::bytes {

constexpr int kBytes = 256, kPlaces = 4;

// By the definition of the format.
inline double value_of(uint32_t byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15), mantissa = static_cast<int>(byte & 7);
  const double sign = byte & 0x80 ? -1 : 1;
  if (exponent == 15 && mantissa == 7) return NAN;
  return sign * std::ldexp(mantissa + (exponent == 0 ? 0 : 8), (exponent == 0 ? 1 : exponent) - 10);
}

enum class Way { neighbours, in_turn, bits };

// Thread i unpacks a word whose byte at place i % 4 is i / 4.
template <typename value_t, Way kWay>
struct Unpack {
  static constexpr int kThreads = kBytes * kPlaces;

  const uint32_t *words;
  uint32_t *got;

  FLASHSMITH_DEVICE void operator()() const {
    const int thread = thread_index();
    const uint32_t word = thread_load_global(words + thread);
    uint32_t numbers[2];
    if constexpr (kWay == Way::bits) {
      numbers[0] = unpack_e4m3_by_bits<value_t, 3, 1>(word);
      numbers[1] = unpack_e4m3_by_bits<value_t, 0, 2>(word);
    } else {
      constexpr auto kPairs = kWay == Way::in_turn ? BytePairs::in_turn : BytePairs::neighbours;
      flashsmith::unpack_e4m3<value_t, kPairs>(numbers, word);
    }
    thread_store_global_4(&got[2 * thread], numbers[0]);
    thread_store_global_4(&got[2 * thread + 1], numbers[1]);
  }
};

template <typename value_t, Way kWay>
void check_unpack(Results &results, const char *name) {
  using Kernel = Unpack<value_t, kWay>;
  // Of which byte each half of the two words is.
  constexpr int kOrders[][kPlaces] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 1, 0, 2}};
  Buffer<uint32_t> words(Kernel::kThreads), got(2 * Kernel::kThreads);
  Random random(5);
  for (uint32_t i = 0; i < words.size(); ++i) {
    const int shift = static_cast<int>(8 * (i % kPlaces));
    words[i] = (static_cast<uint32_t>(random.bits()) & ~(0xffu << shift)) | i / kPlaces << shift;
  }
  run(Kernel{words.data(), got.data()}, {.shared_bytes = 0}, words, got);
  int wrong = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    for (int half = 0; half < kPlaces; ++half) {
      const uint32_t word = got[2 * i + static_cast<size_t>(half / 2)] >> 16 * (half % 2) & 0xffff;
      const double found = scores::value_of(word, is_half<value_t>);
      const double right = value_of(words[i] >> 8 * kOrders[static_cast<int>(kWay)][half] & 0xff);
      wrong += std::isnan(right) ? !std::isnan(found)
                                 : found != right || std::signbit(found) != std::signbit(right);
    }
  }
  results.check(wrong == 0, "unpack_e4m3 to %s: %d numbers are wrong", name, wrong);
}

struct Permute {
  static constexpr int kThreads = 32;

  uint32_t *got;

  FLASHSMITH_DEVICE void operator()() const {
    if (thread_index() > 0) return;
    thread_store_global_4(&got[0], permute_bytes<0x0123>(0x11228344));
    thread_store_global_4(&got[1], permute_bytes<0xb391>(0x11228344));
    thread_store_global_4(&got[2], permute_bytes<0x3120>(0x11228344));
    thread_store_global_4(&got[3], permute_bytes(0x11228344, 0x55667788, 0x7531));
    thread_store_global_4(&got[4], permute_bytes(0x11228344, 0x55667788, 0x0c64));
  }
};

inline void check_permute(Results &results) {
  Buffer<uint32_t> got(5);
  run(Permute{got.data()}, {.shared_bytes = 0}, got);
  const uint32_t right[] = {0x44832211, 0x0011ff83, 0x11832244, 0x55771183, 0x44ff6688};
  for (size_t i = 0; i < got.size(); ++i) {
    results.check(got[i] == right[i], "permute_bytes: %08x in place of %08x", got[i], right[i]);
  }
}

// Thread i packs four numbers, from its own on.
struct PackE4m3 {
  static constexpr int kThreads = 256;

  const float *numbers;
  uint32_t *got;

  FLASHSMITH_DEVICE void operator()() const {
    const float *own = numbers + thread_index();
    thread_store_global_4(&got[thread_index()],
                          pack_e4m3(thread_load_global(own), thread_load_global(own + 1),
                                    thread_load_global(own + 2), thread_load_global(own + 3)));
  }
};

// The nearest number's byte, of two the one with an even mantissa; by looking at all of them.
inline uint32_t nearest(double value) {
  if (std::isnan(value)) return 0x7f;
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  uint32_t best = 0;
  for (uint32_t byte = 0; byte < 0x7f; ++byte) {
    const double distance = std::fabs(value_of(byte) - std::fabs(value));
    const double least = std::fabs(value_of(best) - std::fabs(value));
    if (distance < least || (distance == least && byte % 2 == 0)) best = byte;
  }
  return (std::isinf(value) ? 0x7e : best) | sign;
}

// Numbers, what lies just beside them, and in the middle between two; beyond the largest, NaN.
inline void check_pack_e4m3(Results &results) {
  std::vector<float> numbers = {449.f,     463.9f,     464.f,     465.f,  1e30f, INFINITY,
                                -INFINITY, -1e-30f,    NAN,       -500.f, 0.f,   -0.f,
                                0x1p-10f,  0x1.8p-10f, 0x1p-149f, 240.f};
  Random random(11);
  for (uint32_t byte = 0; byte < 0x7e; ++byte) {
    const auto at = static_cast<float>(value_of(byte));
    const auto middle = static_cast<float>((value_of(byte) + value_of(byte + 1)) / 2);
    for (float value : {at, middle, std::nextafter(middle, 0.f), std::nextafter(middle, 1e3f)}) {
      numbers.push_back(random.bits() % 2 ? value : -value);
    }
  }
  while (numbers.size() % PackE4m3::kThreads != 0) numbers.push_back(random.uniform());
  int wrong = 0;
  for (size_t first = 0; first < numbers.size(); first += PackE4m3::kThreads) {
    Buffer<float> given;
    for (size_t i = 0; i < PackE4m3::kThreads + kPlaces; ++i) {
      given.push_back(numbers[(first + i) % numbers.size()]);
    }
    Buffer<uint32_t> got(PackE4m3::kThreads);
    run(PackE4m3{given.data(), got.data()}, {.shared_bytes = 0}, given, got);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto byte = [&](size_t place) { return nearest(static_cast<double>(given[place])); };
      wrong += got[i] != (byte(i) | byte(i + 1) << 8 | byte(i + 2) << 16 | byte(i + 3) << 24);
    }
  }
  results.check(wrong == 0, "pack_e4m3: %d words are wrong", wrong);
}

// Of small whole numbers, whose products and sums are exact; and beyond the range.
template <typename value_t>
struct Fma {
  static constexpr int kThreads = 256;

  uint32_t *got;

  FLASHSMITH_DEVICE void operator()() const {
    const int thread = thread_index();
    const auto x = static_cast<float>(thread % 16 - 8), y = static_cast<float>(thread / 16 - 8);
    thread_store_global_4(&got[thread], fma_pair<value_t>(pack<value_t>(x, y), pack<value_t>(y, 3),
                                                          pack<value_t>(1, x)));
    const uint32_t large = pack<value_t>(is_half<value_t> ? 60000.f : 3e38f, 1e-5f);
    thread_store_global_4(&got[kThreads + thread],
                          fma_pair<value_t>(large, pack<value_t>(2, 0), pack<value_t>(0, -2)));
  }
};

template <typename value_t>
void check_fma(Results &results, const char *name) {
  constexpr int kCount = Fma<value_t>::kThreads;
  Buffer<uint32_t> got(2 * kCount);
  run(Fma<value_t>{got.data()}, {.shared_bytes = 0}, got);
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = i % 16 - 8, y = i / 16 - 8;
    const auto half = [&](int place, int shift) {
      return scores::value_of(got[static_cast<size_t>(place)] >> shift & 0xffff, is_half<value_t>);
    };
    wrong += half(i, 0) != x * y + 1 || half(i, 16) != 3 * y + x;
    wrong += half(kCount + i, 0) != INFINITY || half(kCount + i, 16) != -2;
  }
  results.check(wrong == 0, "fma_pair of %s: %d are wrong", name, wrong);
}

inline void check(Results &results) {
  check_unpack<half_t, Way::neighbours>(results, "fp16, neighbours");
  check_unpack<half_t, Way::in_turn>(results, "fp16, in turn");
  check_unpack<half_t, Way::bits>(results, "fp16, by bits");
  check_unpack<bfloat16_t, Way::neighbours>(results, "bf16, neighbours");
  check_unpack<bfloat16_t, Way::in_turn>(results, "bf16, in turn");
  check_unpack<bfloat16_t, Way::bits>(results, "bf16, by bits");
  check_permute(results);
  check_pack_e4m3(results);
  check_fma<half_t>(results, "fp16");
  check_fma<bfloat16_t>(results, "bf16");
}

}  // namespace wrappers::bytes
