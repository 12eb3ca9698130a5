// Bytes and their e4m3 numbers against plain computations, for all 256 bytes in each place of a
// word.
#pragma once

#include "device/scores.cuh"
#include "flashsmith/attention/e4m3.cuh"

namespace wrappers::bytes {

constexpr int kBytes = 256, kPlaces = 4;

// Follows the definition of the format.
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
  // The byte that each half of the two words holds.
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

// Packs every number of 16 bits, and as many of 32 bits.
struct Pack {
  static constexpr int kThreads = 512, kWords = 3 << 14;

  const float *numbers;
  uint32_t *got;  // bytes of four: by the instruction or its substitute, and by bits

  FLASHSMITH_DEVICE void operator()() const {
    for (int word = thread_index(); word < kWords; word += kThreads) {
      float of[4];
      for (int i = 0; i < 4; i++) of[i] = thread_load_global(numbers + 4 * word + i);
      uint32_t by_bits = 0;
      for (int i = 0; i < 4; i++) by_bits |= pack_e4m3_by_bits(of[i]) << 8 * i;
      thread_store_global_4(&got[2 * word], flashsmith::pack_e4m3(of[0], of[1], of[2], of[3]));
      thread_store_global_4(&got[2 * word + 1], by_bits);
    }
  }
};

// Returns the nearest byte after a comparison with all of them, and the even one of two.
inline uint32_t nearest(float number) {
  constexpr uint32_t kLargest = 0x7e, kNaN = 0x7f;
  if (std::isnan(number)) return kNaN;
  uint32_t best = 0;
  const auto distance = [&](uint32_t byte) { return std::abs(std::abs(number) - value_of(byte)); };
  for (uint32_t byte = 1; byte <= kLargest && !std::isinf(number); ++byte) {
    const double nearer = distance(byte) - distance(best);
    if (nearer < 0 || (nearer == 0 && byte % 2 == 0)) best = byte;
  }
  return (std::isinf(number) ? kLargest : best) | (std::signbit(number) ? 0x80 : 0);
}

inline void check_pack(Results &results) {
  Buffer<float> numbers(4 * Pack::kWords);
  Buffer<uint32_t> got(2 * Pack::kWords);
  Random random(6);
  for (uint32_t i = 0; i < numbers.size(); ++i) {
    const uint32_t bits = i % (1 << 16), any = static_cast<uint32_t>(random.bits());
    // Most numbers of the last third are in range, and many are near the middle between two bytes.
    const uint32_t near = (any & 0x80f80000) + (113u << 23) + (any >> 9 & 0x7f) % 23 * (1u << 23);
    numbers[i] = i < 1 << 16   ? static_cast<float>(scores::value_of(bits, true))
                 : i < 2 << 16 ? bits_float(bits << 16)
                               : bits_float(i % 2 ? any : near + (any & 3) - 1);
  }
  run(Pack{numbers.data(), got.data()}, {.shared_bytes = 0}, numbers, got);
  int wrong = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const uint32_t right = nearest(numbers[i]);
    for (const uint32_t word : {got[i / 4 * 2], got[i / 4 * 2 + 1]}) {
      const uint32_t found = word >> 8 * (i % 4) & 0xff;
      wrong += found != right && !(right == 0x7f && (found & 0x7f) == right);
    }
  }
  results.check(wrong == 0, "pack_e4m3: %d bytes are wrong", wrong);
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

// Multiplies and adds small whole numbers, whose products and sums are exact, and numbers beyond
// the range.
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
  check_pack(results);
  check_permute(results);
  check_fma<half_t>(results, "fp16");
  check_fma<bfloat16_t>(results, "bf16");
}

}  // namespace wrappers::bytes
