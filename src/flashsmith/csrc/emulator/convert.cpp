// Conversions in integers, with the same results on every host: FP32 to the 16-bit types, rounding
// to nearest even, and back; FP8; and the approximate hyperbolic tangent.
#include <algorithm>
#include <bit>
#include <cmath>

#include "emulator/device.h"
#include "emulator/elements.h"

namespace flashsmith::emulator {
namespace {

constexpr uint32_t kSign = 0x80000000, kInfinity = 0x7F800000;

// Shifts out the lowest `bits` bits, and rounds the rest to nearest, ties to even.
uint32_t round_shift(uint32_t value, int bits) {
  const uint32_t half = 1u << (bits - 1), lowest = value >> bits & 1;
  return (value + half - 1 + lowest) >> bits;
}

uint32_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~kSign) > kInfinity) return 0x7FFF;  // the NaN that cvt returns
  return round_shift(bits, 16);
}

uint32_t to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & ~kSign;
  const uint32_t sign = bits >> 16 & 0x8000;
  constexpr uint32_t kOverflow = 0x477FF000;        // 65520: halfway between 65504 and 65536
  constexpr uint32_t kSmallestNormal = 0x38800000;  // 2^-14
  constexpr uint32_t kRebias = (127 - 15) << 23;
  if (magnitude > kInfinity) return 0x7FFF;
  if (magnitude >= kOverflow) return sign | 0x7C00;
  if (magnitude >= kSmallestNormal) return sign | round_shift(magnitude - kRebias, 13);
  // A subnormal counts units of 2^-24. Below 2^-25 everything rounds to zero.
  const int exponent = static_cast<int>(magnitude >> 23);
  if (exponent < 127 - 25) return sign;
  const uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  return sign | round_shift(mantissa, 127 - 1 - exponent);
}

}  // namespace

uint32_t pack(float low, float high, MmaType type) {
  const auto convert = type == MmaType::f16 ? to_f16 : to_bf16;
  return convert(low) | convert(high) << 16;
}

float unpack(uint16_t bits, MmaType type) {
  const Words words = {bits, bits, bits, bits};
  return (type == MmaType::f16 ? DecodeF16()(words) : DecodeBf16()(words))[0];
}

uint32_t unpack_e4m3(uint16_t bytes) {
  return pack(kE4m3[bytes & 0xff], kE4m3[bytes >> 8], MmaType::f16);
}

uint16_t pack_e4m3(float low, float high) {
  const auto convert = [](float value) -> int {
    constexpr int kNaN = 0x7f, kLargest = 0x7e;
    if (std::isnan(value)) return kNaN;
    const float magnitude = std::fabs(value);
    // Bits grow with the number. This finds the first number that is not below it, and the previous
    // one.
    int above = 0;
    while (above < kLargest && kE4m3[static_cast<size_t>(above)] < magnitude) above++;
    const int below = std::max(above - 1, 0);
    const float up = kE4m3[static_cast<size_t>(above)] - magnitude;
    const float down = magnitude - kE4m3[static_cast<size_t>(below)];
    const int nearest = down < up || (down == up && below % 2 == 0) ? below : above;
    return nearest | (std::signbit(value) ? 0x80 : 0);
  };
  return static_cast<uint16_t>(convert(low) | convert(high) << 8);
}

uint32_t permute_bytes(uint32_t first, uint32_t second, uint32_t selector) {
  constexpr uint32_t kIsSign = 8, kByte = 0xff;
  const uint64_t words = uint64_t{second} << 32 | first;
  uint32_t result = 0;
  for (int place = 0; place < 4; place++) {
    const uint32_t digit = selector >> 4 * place & 0xf;
    const auto byte = static_cast<uint32_t>(words >> 8 * (digit & 7)) & kByte;
    result |= (digit & kIsSign ? (byte & 0x80 ? kByte : 0) : byte) << 8 * place;
  }
  return result;
}

uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c, MmaType type) {
  const auto half = [&](int shift) {
    const auto of = [&](uint32_t word) -> double {
      return unpack(static_cast<uint16_t>(word >> shift), type);
    };
    return static_cast<float>(of(a) * of(b) + of(c));
  };
  return pack(half(0), half(16), type);
}

float mul_rz(float x, float y) {
  const double exact = static_cast<double>(x) * y;
  const auto nearest = static_cast<float>(exact);
  return std::fabs(nearest) > std::fabs(exact) ? std::nextafter(nearest, 0.f) : nearest;
}

float tanh_approx(float x) {
  constexpr uint32_t kLost = (1u << 12) - 1;  // of the mantissa: the rest is accurate to 2^-11
  const float exact = std::tanh(x);
  return std::isnan(exact) ? exact : std::bit_cast<float>(std::bit_cast<uint32_t>(exact) & ~kLost);
}

}  // namespace flashsmith::emulator
