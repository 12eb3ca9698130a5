// Instructions of a warp against plain computations: loads and stores of fragments, exchange
// between lanes, conversion.
#pragma once

#include "device/harness.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/ptx/stmatrix_transposed.cuh"
#include "flashsmith/ptx/warpgroup.cuh"

namespace wrappers::warps {

// Four 8x8 matrices whose element i is i, in rows kRowBytes apart: `loaded` (lane, matrix) is the
// result of ldmatrix, and `stored` (matrix, row, half of the columns) the result of stmatrix on it.
template <bool kTransposed, bool kStoredTransposed>
struct Fragments {
  static constexpr int kThreads = 32, kRowBytes = 48;

  uint32_t *loaded, *stored;

  FLASHSMITH_DEVICE void operator()() const {
    const int lane = thread_index();
    const shared_address row = shared_memory() + (31 - lane) * kRowBytes;  // not in order
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t element = static_cast<uint32_t>(lane * 8 + i * 2);
      chunk.word[i] = element | (element + 1) << 16;
    }
    store_shared_16(row, chunk);
    warp_sync();
    uint32_t fragment[4];
    ldmatrix_x4<kTransposed>(fragment, row);
    warp_sync();
    if constexpr (kStoredTransposed) {
      stmatrix_x4_transposed(row, fragment);
    } else {
      stmatrix_x4(row, fragment);
    }
    warp_sync();
    load_shared_16(chunk, row);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      thread_store_global_4(&loaded[lane * 4 + i], fragment[i]);
      thread_store_global_4(&stored[lane * 4 + i], chunk.word[i]);
    }
  }
};

template <bool kTransposed, bool kStoredTransposed>
void check_fragments(Results &results) {
  Buffer<uint32_t> loaded(128), stored(128);
  using Kernel = Fragments<kTransposed, kStoredTransposed>;
  run(Kernel{loaded.data(), stored.data()}, {.shared_bytes = 32 * Kernel::kRowBytes}, loaded,
      stored);
  int wrong_loaded = 0, wrong_stored = 0;
  for (uint32_t i = 0; i < 128; ++i) {
    // The element (row, column) of a matrix, and the element of the next column.
    const auto pair = [](bool transposed, uint32_t matrix, uint32_t row, uint32_t column) {
      const uint32_t first = transposed ? column * 8 + row : row * 8 + column;
      const uint32_t step = transposed ? 8 : 1;
      return (matrix * 64 + first) | (matrix * 64 + first + step) << 16;
    };
    const uint32_t lane = i / 4;
    wrong_loaded += loaded[i] != pair(kTransposed, i % 4, lane / 4, lane % 4 * 2);
    wrong_stored +=
        stored[i] != pair(kTransposed != kStoredTransposed, lane / 8, lane % 8, i % 4 * 2);
  }
  results.check(wrong_loaded == 0, "ldmatrix, transposed %d: %d words of 128 are wrong",
                kTransposed, wrong_loaded);
  results.check(wrong_stored == 0, "stmatrix, transposed %d, of %d: %d words of 128 are wrong",
                kStoredTransposed, kTransposed, wrong_stored);
}

// Gets for each thread the values of the lanes at distances 1, 2, 4, 8, 16, and its votes.
struct Exchange {
  static constexpr int kThreads = 64;

  float *shuffled;  // (thread, 5)
  int *votes;       // (thread, 3): elected; any of `voter`; any of nobody
  int voter;

  FLASHSMITH_DEVICE void operator()() const {
    const int thread = thread_index();
    const auto mine = static_cast<float>(thread);
    const float got[] = {shuffle_xor<1>(mine), shuffle_xor<2>(mine), shuffle_xor<4>(mine),
                         shuffle_xor<8>(mine), shuffle_xor<16>(mine)};
    for (int i = 0; i < 5; ++i) shuffled[thread * 5 + i] = got[i];
    votes[thread * 3] = elect_one();
    votes[thread * 3 + 1] = vote_any(thread == voter);
    votes[thread * 3 + 2] = vote_any(thread < 0);
  }
};

inline void check_exchange(Results &results) {
  Buffer<float> shuffled(64 * 5);
  Buffer<int> votes(64 * 3);
  run(Exchange{shuffled.data(), votes.data(), 37}, {.shared_bytes = 0}, shuffled, votes);
  int wrong_shuffles = 0, wrong_votes = 0, elected[2] = {};
  for (int thread = 0; thread < 64; ++thread) {
    const int *vote = &votes[static_cast<size_t>(thread) * 3];
    for (int i = 0; i < 5; ++i) {
      wrong_shuffles +=
          shuffled[static_cast<size_t>(thread * 5 + i)] != static_cast<float>(thread ^ 1 << i);
    }
    elected[thread / 32] += vote[0];
    wrong_votes += vote[1] != thread / 32 || vote[2] != 0;
  }
  results.check(wrong_shuffles == 0, "shuffle_xor: %d values are wrong", wrong_shuffles);
  results.check(wrong_votes == 0, "vote_any: %d values are wrong", wrong_votes);
  results.check(elected[0] == 1 && elected[1] == 1, "elect_one: %d and %d lanes of the warps",
                elected[0], elected[1]);
}

// Converts x and -x, and computes 2^-x and the logarithm of x.
struct Numbers {
  static constexpr int kThreads = 256;

  const float *x;
  uint32_t *halves, *bfloats;
  float *exponentials, *logarithms;
  int count;

  FLASHSMITH_DEVICE void operator()() const {
    for (int i = thread_index(); i < count; i += kThreads) {
      halves[i] = pack<half_t>(x[i], -x[i]);
      bfloats[i] = pack<bfloat16_t>(x[i], -x[i]);
      exponentials[i] = exp2_approx(-x[i]);
      logarithms[i] = log2_approx(x[i]);
    }
  }
};

// Returns the 16 bits of the nearest number to a positive normal one, and the even one of two.
inline uint32_t rounded(float value, bool half) {
  const int mantissa_bits = half ? 10 : 7, bias = half ? 15 : 127;
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // in [0.5, 1)
  const auto mantissa =
      static_cast<uint32_t>(std::nearbyint(std::ldexp(fraction, mantissa_bits + 1)));
  return (static_cast<uint32_t>(exponent + bias - 2) << mantissa_bits) + mantissa;
}

inline void check_numbers(Results &results) {
  Buffer<float> x;
  Random random(5);
  for (int i = 0; i < 4096; ++i) {
    // Some numbers lie halfway between neighbours in bf16 or in fp16.
    const uint32_t steps = i % 3 == 0 ? 1 << 8 : i % 3 == 1 ? 1 << 11 : 1 << 23;
    const float fraction = static_cast<float>(random.bits() % steps) / static_cast<float>(steps);
    x.push_back(std::ldexp(1 + fraction, static_cast<int>(random.bits() % 24) - 12));
  }
  const size_t count = x.size();
  Buffer<uint32_t> halves(count), bfloats(count);
  Buffer<float> exponentials(count), logarithms(count);
  run(Numbers{x.data(), halves.data(), bfloats.data(), exponentials.data(), logarithms.data(),
              static_cast<int>(count)},
      {.shared_bytes = 0}, x, halves, bfloats, exponentials, logarithms);
  int wrong[4] = {};
  for (size_t i = 0; i < count; ++i) {
    const auto both = [](uint32_t bits) { return bits | (bits | 0x8000) << 16; };
    wrong[0] += halves[i] != both(rounded(x[i], true));
    wrong[1] += bfloats[i] != both(rounded(x[i], false));
    // Numbers below the smallest normal one may become 0.
    const double power = std::exp2(-static_cast<double>(x[i]));
    wrong[2] += std::fabs(exponentials[i] - power) > power * 0x1p-21 + 0x1p-126;
    const double logarithm = std::log2(static_cast<double>(x[i]));
    wrong[3] += std::fabs(logarithms[i] - logarithm) > std::fabs(logarithm) * 0x1p-21 + 0x1p-21;
  }
  const char *names[] = {"pack to fp16", "pack to bf16", "exp2_approx", "log2_approx"};
  for (int i = 0; i < 4; ++i) {
    results.check(wrong[i] == 0, "%s: %d of %d are wrong", names[i], wrong[i],
                  static_cast<int>(count));
  }
}

inline void check(Results &results) {
  check_fragments<false, false>(results);
  check_fragments<true, false>(results);
  check_fragments<false, true>(results);
  check_fragments<true, true>(results);
  check_exchange(results);
  check_numbers(results);
}

}  // namespace wrappers::warps
