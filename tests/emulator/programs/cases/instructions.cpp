// Each instruction against a plain computation.
#include <algorithm>
#include <bit>
#include <cmath>

#include "cases.h"

namespace cases {

namespace {

constexpr int kM = 16, kN = 8, kK = 16, kLanes = 32;

void run(unsigned threads, size_t shared_bytes, const std::function<void()> &body) {
  launch({.kernel = "instruction",
          .grid = {},
          .threads = threads,
          .shared_memory_bytes = shared_bytes,
          .memory = {},
          .body = body},
         {});
}

// Follows the definition of the formats, with none of the emulator's bit tricks.
double value_of(uint16_t bits, MmaType type) {
  const int mantissa_bits = type == MmaType::f16 ? 10 : 7;
  const int bias = type == MmaType::f16 ? 15 : 127;
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 2 * bias + 1) return mantissa ? NAN : sign * INFINITY;
  const int implicit = exponent == 0 ? 0 : 1 << mantissa_bits;
  return sign *
         std::ldexp(mantissa + implicit, (exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
}

struct Tile {
  uint16_t a[kM][kK], b[kK][kN];
  float c[kM][kN];
};

// The fragments are those of the PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point
// type", verbatim.
void multiply_on_warp(Tile &tile, MmaType type) {
  run(kLanes, 0, [&] {
    const int lane = static_cast<int>(thread_index());
    const int group = lane >> 2, in_group = lane % 4;
    uint32_t a[4] = {}, b[2] = {};
    float c[4];
    for (int i = 0; i < 8; ++i) {
      const int row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
      const int col = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
      a[i / 2] |= static_cast<uint32_t>(tile.a[row][col]) << (16 * (i & 1));
    }
    for (int i = 0; i < 4; ++i) {
      const int row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
      b[i / 2] |= static_cast<uint32_t>(tile.b[row][group]) << (16 * (i & 1));
    }
    const auto at = [&](int i) -> float & {
      return tile.c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
    };
    for (int i = 0; i < 4; ++i) c[i] = at(i);
    mma_m16n8k16(c, a, b[0], b[1], type);
    for (int i = 0; i < 4; ++i) at(i) = c[i];
  });
}

void check_mma(MmaType type, uint64_t seed, const std::function<uint16_t(Random &)> &draw) {
  Random random(seed);
  Tile tile;
  for (auto &row : tile.a) {
    for (auto &x : row) x = draw(random);
  }
  for (auto &row : tile.b) {
    for (auto &x : row) x = draw(random);
  }
  for (auto &row : tile.c) {
    for (auto &x : row) x = random.uniform();
  }
  const Tile before = tile;
  multiply_on_warp(tile, type);
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) {
      float expected = before.c[i][j];
      for (int k = 0; k < kK; ++k) {
        // A product of two 16-bit numbers is exact in fp32, unless it leaves its range.
        const auto product =
            static_cast<float>(value_of(before.a[i][k], type) * value_of(before.b[k][j], type));
        expected += product;
      }
      const bool same = std::isnan(expected) ? std::isnan(tile.c[i][j]) : expected == tile.c[i][j];
      if (!same)
        fail("mma type %d: c[%d][%d] is %a, not %a", int(type), i, j, tile.c[i][j], expected);
    }
  }
}

void check_decoding(MmaType type) {  // every bit pattern, as a * 1 + 0
  const uint16_t one = type == MmaType::f16 ? 0x3C00 : 0x3F80;
  for (uint32_t first = 0; first < 0x10000; first += kM) {
    Tile tile = {};
    for (uint32_t i = 0; i < kM; ++i) tile.a[i][3] = static_cast<uint16_t>(first + i);
    tile.b[3][5] = one;
    multiply_on_warp(tile, type);
    for (uint32_t i = 0; i < kM; ++i) {
      const double expected = value_of(static_cast<uint16_t>(first + i), type);
      const float got = tile.c[i][5];
      const bool same = std::isnan(expected) ? std::isnan(got) : expected == got;
      if (!same)
        fail("decoding 0x%04x of type %d gave %a, not %a", first + i, int(type), got, expected);
    }
  }
}

void check_ldmatrix(bool transposed) {
  constexpr int kRowBytes = 48;  // rows need not be adjacent
  uint32_t got[kLanes][4];
  run(kLanes, kLanes * kRowBytes, [&] {
    const unsigned lane = thread_index();
    char *row = shared_bytes() + (kLanes - 1 - lane) * kRowBytes;  // nor in order
    uint16_t elements[8];
    for (unsigned i = 0; i < 8; ++i) elements[i] = static_cast<uint16_t>(lane * 8 + i);
    store_shared(row, elements, sizeof elements);
    warp_sync(Where::current());
    ldmatrix_x4(got[lane], row, transposed);
  });
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
      for (unsigned half = 0; half < 2; ++half) {
        unsigned row = lane / 4, column = lane % 4 * 2 + half;
        if (transposed) std::swap(row, column);
        const unsigned expected = (matrix * 8 + row) * 8 + column;
        const unsigned element = got[lane][matrix] >> (16 * half) & 0xFFFF;
        if (element != expected) {
          fail("ldmatrix transposed %d: lane %u register %u half %u is %u, not %u", int(transposed),
               lane, matrix, half, element, expected);
        }
      }
    }
  }
}

void check_stmatrix() {
  constexpr int kRowBytes = 48;  // rows need not be adjacent
  uint16_t got[kLanes][8];
  run(kLanes, kLanes * kRowBytes, [&] {
    const unsigned lane = thread_index();
    char *row = shared_bytes() + (kLanes - 1 - lane) * kRowBytes;  // nor in order
    uint32_t fragment[4];
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
      const unsigned first = (matrix * 8 + lane / 4) * 8 + lane % 4 * 2;
      fragment[matrix] = first | (first + 1) << 16;
    }
    stmatrix_x4(row, fragment);
    warp_sync(Where::current());
    load_shared(got[lane], row, sizeof got[lane]);
  });
  for (unsigned row = 0; row < kLanes; ++row) {
    for (unsigned i = 0; i < 8; ++i) {
      if (got[row][i] != row * 8 + i) {
        fail("stmatrix: element %u of row %u is %u, not %u", i, row, got[row][i], row * 8 + i);
      }
    }
  }
}

void check_shuffle() {
  for (int mask = 0; mask < kLanes; ++mask) {
    float got[2 * kLanes];
    run(2 * kLanes, 0,
        [&] { got[thread_index()] = shuffle_xor(static_cast<float>(thread_index()), mask); });
    for (int i = 0; i < 2 * kLanes; ++i) {
      if (got[i] != static_cast<float>(i ^ mask))
        fail("shuffle_xor %d: thread %d got %g", mask, i, got[i]);
    }
  }
  const auto source = [](int thread) { return (7 * thread + 3) % kLanes; };
  int got[2 * kLanes];
  run(2 * kLanes, 0, [&] {
    const int thread = static_cast<int>(thread_index());
    got[thread] = shuffle_from(thread, source(thread));
  });
  for (int i = 0; i < 2 * kLanes; ++i) {
    const int expected = i / kLanes * kLanes + source(i);
    if (got[i] != expected) fail("shuffle_from: thread %d got %d", i, got[i]);
  }
}

void check_vote() {
  for (int voter : {-1, 0, 31}) {
    bool got[kLanes];
    run(kLanes, 0,
        [&] { got[thread_index()] = vote_any(static_cast<int>(thread_index()) == voter); });
    for (bool any : got) {
      if (any != (voter >= 0)) fail("vote_any of lane %d gave %d", voter, int(any));
    }
  }
}

// pack rounds to the nearest number of the format, and to the even one of two equally near ones.
void check_pack(MmaType type) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {  // numbers of the format are unchanged
    const auto value = static_cast<float>(value_of(static_cast<uint16_t>(bits), type));
    if (std::isnan(value)) continue;
    const uint32_t packed = pack(value, -value, type);
    if (packed != (bits | (bits ^ 0x8000) << 16)) fail("pack of %a gave 0x%08x", value, packed);
  }
  const uint16_t largest = type == MmaType::f16 ? 0x7BFF : 0x7F7F;
  Random random(3);
  for (int i = 0; i < 200000; ++i) {
    // The value lies between two neighbours of the format: at random, halfway, and just beside
    // that.
    const uint32_t bits = random.bits() % largest;
    const double low = value_of(static_cast<uint16_t>(bits), type);
    const double high = value_of(static_cast<uint16_t>(bits + 1), type);
    auto value =
        static_cast<float>(low + (high - low) * (i % 3 ? 0.5 : random.uniform() / 2 + 0.5));
    if (i % 3 == 2) value = std::nextafter(value, random.bits() % 2 ? 0.0f : INFINITY);
    const double below = value - low, above = high - value;
    const uint32_t expected = below < above || (below == above && bits % 2 == 0) ? bits : bits + 1;
    const uint32_t packed = pack(value, 0, type);
    if (packed != expected) fail("pack of %a gave 0x%08x, not 0x%04x", value, packed, expected);
  }
  for (const float infinite : {INFINITY, 3.4e38f}) {
    if (!std::isinf(value_of(static_cast<uint16_t>(pack(infinite, 0, type)), type))) {
      fail("pack of %a is finite", infinite);
    }
  }
  if (!std::isnan(value_of(static_cast<uint16_t>(pack(NAN, 0, type)), type)))
    fail("pack of NaN%s", "");
}

// unpack restores every number of the format.
void check_unpack(MmaType type) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double expected = value_of(static_cast<uint16_t>(bits), type);
    const float got = unpack(static_cast<uint16_t>(bits), type);
    const bool same =
        std::isnan(expected) ? std::isnan(got) : got == expected && std::signbit(got) == bits >> 15;
    if (!same) fail("unpack of 0x%04x of type %d gave %a, not %a", bits, int(type), got, expected);
  }
}

// tanh_approx loses bits of the exact value, towards zero: at most 2^-11 of it, but some.
void check_tanh() {
  Random random(4);
  double maximum = 0;
  for (int i = 0; i < 100000; ++i) {
    const float x = std::ldexp(random.uniform(), static_cast<int>(random.bits() % 24) - 20);
    const double exact = std::tanh(static_cast<double>(x)), got = tanh_approx(x);
    const double lost = exact == 0 ? 0 : 1 - got / exact;
    if (lost < -0x1p-23 || lost > 0x1p-11) fail("tanh_approx of %a gave %a", x, got);
    if (got != -tanh_approx(-x)) fail("tanh_approx of %a is not that of %a, negated", x, -x);
    maximum = std::max(maximum, lost);
  }
  if (maximum < 0x1p-12) fail("tanh_approx is exact to %a", maximum);
  if (tanh_approx(INFINITY) != 1 || tanh_approx(-INFINITY) != -1) fail("tanh_approx of inf%s", "");
  if (!std::isnan(tanh_approx(NAN))) fail("tanh_approx of NaN%s", "");
}

// Each thread reads what its opposite, in another warp, wrote; this happens three times.
void check_barrier(int bytes) {
  constexpr unsigned kThreads = 256;
  const auto stride = static_cast<size_t>(bytes);
  uint32_t got[kThreads][3];
  run(kThreads, kThreads * stride, [&] {
    const unsigned thread = thread_index();
    for (uint32_t round = 0; round < 3; ++round) {
      const uint32_t mine[4] = {thread + round, 1, 2, 3};
      uint32_t theirs[4];
      store_shared(shared_bytes() + thread * stride, mine, bytes);
      barrier_sync(Where::current());
      load_shared(theirs, shared_bytes() + (kThreads - 1 - thread) * stride, bytes);
      barrier_sync(Where::current());
      got[thread][round] = theirs[0];
      for (uint32_t i = 1; i < stride / 4; ++i) got[thread][round] += theirs[i] - i;
    }
  });
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    for (unsigned round = 0; round < 3; ++round) {
      if (got[thread][round] != kThreads - 1 - thread + round) {
        fail("barrier: thread %u got %u in round %u", thread, got[thread][round], round);
      }
    }
  }
}

// The bytes appear, and the source is read, at the wait that covers them.
void check_asynchronous_copy() {
  std::vector<uint32_t> source(2 * kLanes * 4, 1);
  uint32_t in_flight = 0, landed = 0, other = 0;
  const auto *in = reinterpret_cast<const char *>(source.data());
  const Launch copy{.kernel = "copy",
                    .grid = {},
                    .threads = kLanes,
                    .shared_memory_bytes = 2 * kLanes * 16,
                    .memory = {{in, source.size() * 4, "source", false}},
                    .body = [&] {
                      const unsigned lane = thread_index();
                      cp_async_16(shared_bytes() + lane * 16, in + lane * 16);
                      cp_async_commit_group();
                      cp_async_16(shared_bytes() + (kLanes + lane) * 16, in + (kLanes + lane) * 16);
                      cp_async_commit_group();
                      source[lane * 4] = source[(kLanes + lane) * 4] = 2;
                      std::memcpy(&in_flight, shared_bytes() + lane * 16, 4);  // past the checks
                      cp_async_wait_group(1, Where::current());
                      load_shared(&landed, shared_bytes() + lane * 16, 4);
                      std::memcpy(&other, shared_bytes() + (kLanes + lane) * 16, 4);
                    }};
  launch(copy, {});
  if (in_flight != ~0u) fail("bytes in flight are 0x%x, not poison", in_flight);
  if (landed != 2) fail("the landed word is %u, not what the source held at the wait", landed);
  if (other != ~0u) fail("the group that was not waited for landed: 0x%x", other);
}

}  // namespace

void instructions() {
  for (const MmaType type : {MmaType::f16, MmaType::bf16}) {
    const uint16_t exponent_of_one = type == MmaType::f16 ? 0x3800 : 0x3F00;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      check_mma(type, seed, [&](Random &r) {  // of magnitude 0.5 to 2, either sign
        return static_cast<uint16_t>((r.bits() & 0x83FF) + exponent_of_one);
      });
      check_mma(type, seed, [](Random &r) {  // small, with subnormals and zeros
        return static_cast<uint16_t>(r.bits() & 0x87FF);
      });
      check_mma(type, seed, [](Random &r) { return static_cast<uint16_t>(r.bits()); });
    }
    check_decoding(type);
    check_pack(type);
    check_unpack(type);
  }
  check_tanh();
  check_ldmatrix(false);
  check_ldmatrix(true);
  check_stmatrix();
  check_shuffle();
  check_vote();
  for (int bytes : {4, 8, 16}) check_barrier(bytes);
  check_asynchronous_copy();
  std::puts("{}");
}

}  // namespace cases
