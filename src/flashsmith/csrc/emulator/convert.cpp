// fp32 to the 16-bit types, rounding to nearest even, in integers: the same on every host; back;
// numbers of 8 bits; and the approximate hyperbolic tangent.
#include <algorithm>
#include <bit>
#include <cmath>

#include "emulator/device.h"
#include "emulator/elements.h"

namespace flashsmith::emulator {
namespace {

constexpr uint32_t kSign = 0x80000000, kInfinity = 0x7F800000;

// Shifts the lowest `bits` bits out; what they held rounds the rest to nearest, ties to even.
uint32_t round_shift(uint32_t value, int bits) {
  const uint32_t half = 1u << (bits - 1), lowest = value >> bits & 1;
  return (value + half - 1 + lowest) >> bits;
}

uint32_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~kSign) > kInfinity) return 0x7FFF;  // the NaN that cvt gives
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
  // Subnormal: count units of 2^-24. Below 2^-25 all of it rounds away.
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
  constexpr int kMantissaBits = 3, kBias = 7, kSign = 0x80, kNaN = 0x7f;
  const auto value = [](int byte) {
    const int exponent = (byte & kNaN) >> kMantissaBits, mantissa = byte & 7;
    const int one = exponent == 0 ? 0 : 1 << kMantissaBits;
    const float magnitude = std::ldexp(static_cast<float>(mantissa + one),
                                       std::max(exponent, 1) - kBias - kMantissaBits);
    return (byte & kNaN) == kNaN ? NAN : byte & kSign ? -magnitude : magnitude;
  };
  return pack(value(bytes & 0xff), value(bytes >> 8), MmaType::f16);
}

uint16_t pack_e4m3(float low, float high) {
  constexpr int kMantissaBits = 3, kSmallestExponent = -6, kNaN = 0x7f;
  const auto byte = [](float value) {
    if (std::isnan(value)) return kNaN;
    const double magnitude = std::min(std::abs(static_cast<double>(value)), 448.0);
    int exponent = kSmallestExponent;
    if (magnitude > 0) exponent = std::max(exponent, std::ilogb(magnitude));
    // In units of the last place, rounded to even: a carry is the next exponent's first number.
    const double units = std::nearbyint(std::ldexp(magnitude, kMantissaBits - exponent));
    const int first = (exponent - kSmallestExponent) << kMantissaBits;
    return first + static_cast<int>(units) | (std::signbit(value) ? 0x80 : 0);
  };
  return static_cast<uint16_t>(byte(low) | byte(high) << 8);
}

uint32_t permute_bytes(uint32_t word, uint32_t selector) {
  constexpr uint32_t kIsSign = 8, kByte = 0xff;
  uint32_t result = 0;
  for (int place = 0; place < 4; place++) {
    const uint32_t digit = selector >> 4 * place & 0xf;
    const uint32_t byte = word >> 8 * (digit & 3) & kByte;
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

float tanh_approx(float x) {
  constexpr uint32_t kLost = (1u << 12) - 1;  // of the mantissa: what is left is good to 2^-11
  const float exact = std::tanh(x);
  return std::isnan(exact) ? exact : std::bit_cast<float>(std::bit_cast<uint32_t>(exact) & ~kLost);
}

}  // namespace flashsmith::emulator
