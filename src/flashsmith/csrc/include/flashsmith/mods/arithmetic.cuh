// The arithmetic of a user's score_mod and mask_mod over float, int32_t and bool: it means the same
// as in torch, and no operation is undefined. Generated policies call it by torch's names.
#pragma once

#include <cmath>

#include "flashsmith/attention/score.cuh"
#include "flashsmith/ptx/math.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/reciprocal.cuh"
#include "flashsmith/types.cuh"

namespace flashsmith::mods {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr float kLog10Of2 = 0.3010299956639812f;
constexpr int kIntBits = 32;

// ---- conversions ----

FLASHSMITH_DEVICE float to_float(int32_t x) { return static_cast<float>(x); }
FLASHSMITH_DEVICE int32_t to_int(bool x) { return x; }
FLASHSMITH_DEVICE int32_t to_int(float x) { return ptx::float_to_int(x); }
template <typename T>
FLASHSMITH_DEVICE bool to_bool(T x) {
  return x != T{0};
}

// ---- integers: they wrap, and quotients are rounded down, as in Python ----

FLASHSMITH_DEVICE int32_t add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
FLASHSMITH_DEVICE int32_t sub(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}
FLASHSMITH_DEVICE int32_t mul(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
FLASHSMITH_DEVICE int32_t neg(int32_t x) { return sub(0, x); }
FLASHSMITH_DEVICE int32_t abs(int32_t x) { return x < 0 ? neg(x) : x; }
FLASHSMITH_DEVICE int32_t sign(int32_t x) { return (x > 0) - (x < 0); }

// The remainder has the dividend's sign. Division by zero gives the dividend as the remainder, and
// zero as the quotient.
FLASHSMITH_DEVICE int32_t fmod(int32_t a, int32_t b) {
  if (b == 0) return a;
  return b == -1 ? 0 : a % b;
}

// The remainder has the divisor's sign.
FLASHSMITH_DEVICE int32_t remainder(int32_t a, int32_t b) {
  const int32_t r = fmod(a, b);
  return r != 0 && b != 0 && (r < 0) != (b < 0) ? r + b : r;
}

FLASHSMITH_DEVICE int32_t floor_divide(int32_t a, int32_t b) {
  if (b == 0) return 0;
  if (b == -1) return neg(a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

FLASHSMITH_DEVICE int32_t pow(int32_t base, int32_t exponent) {
  if (exponent < 0) {  // the integer part of a fraction
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    return base == 1 ? 1 : 0;
  }
  int32_t result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = mul(result, base);
    base = mul(base, base);
  }
  return result;
}

FLASHSMITH_DEVICE bool bitwise_not(bool x) { return !x; }
FLASHSMITH_DEVICE int32_t bitwise_not(int32_t x) { return ~x; }

FLASHSMITH_DEVICE bool is_shift(int32_t count) { return count >= 0 && count < kIntBits; }
FLASHSMITH_DEVICE int32_t bitwise_left_shift(int32_t x, int32_t count) {
  return is_shift(count) ? static_cast<int32_t>(static_cast<uint32_t>(x) << count) : 0;
}
FLASHSMITH_DEVICE int32_t bitwise_right_shift(int32_t x, int32_t count) {
  return x >> (is_shift(count) ? count : kIntBits - 1);
}

// ---- distances ----

// The following functions return the distance of a key behind a position, or ahead of it: to_float
// of the difference, with one conversion for a lane's row and one addition for each key. Beyond
// 2^24 it is rounded twice.
FLASHSMITH_DEVICE float keys_behind(int32_t place, const Key &key) {
  return static_cast<float>(sub(place, key.first)) - static_cast<float>(key.column);
}
FLASHSMITH_DEVICE float keys_ahead(const Key &key, int32_t place) {
  return static_cast<float>(sub(key.first, place)) + static_cast<float>(key.column);
}

// ---- integers and floats ----

// The following functions return NaN if an argument is NaN.
template <typename T>
FLASHSMITH_DEVICE T minimum(T a, T b) {
  return a != a || a < b ? a : b;
}
template <typename T>
FLASHSMITH_DEVICE T maximum(T a, T b) {
  return a != a || a > b ? a : b;
}

// ---- floats ----

FLASHSMITH_DEVICE float neg(float x) { return -x; }
FLASHSMITH_DEVICE float abs(float x) { return fabsf(x); }
FLASHSMITH_DEVICE float sign(float x) { return static_cast<float>((x > 0) - (x < 0)); }
FLASHSMITH_DEVICE bool isnan(float x) { return x != x; }
FLASHSMITH_DEVICE bool isinf(float x) { return fabsf(x) == INFINITY; }

// Returns a / b, rounded as `/` rounds, for a constant b and its rounded inverse, without the
// branch to the rare cases of a division, which is a call that wgmma would wait for. Neither b nor
// its inverse may be subnormal, which is known only of constants. (Markstein 1990: the remainder of
// the first quotient corrects it.)
FLASHSMITH_DEVICE float div_by_constant(float a, float b, float inverse) {
  const float quotient = a * inverse;
  const float corrected = fmaf(fmaf(-quotient, b, a), inverse, quotient);
  return fabsf(quotient) < INFINITY ? copysignf(corrected, quotient) : quotient;
}

FLASHSMITH_DEVICE float fmod(float a, float b) { return fmodf(a, b); }
FLASHSMITH_DEVICE float remainder(float a, float b) {
  const float r = fmodf(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
FLASHSMITH_DEVICE float floor_divide(float a, float b) {
  if (b == 0) return a / b;
  const float r = fmodf(a, b);
  const float quotient = (a - r) / b - (r != 0 && (r < 0) != (b < 0));  // whole but for rounding
  const float whole = floorf(quotient);
  if (quotient == 0) return copysignf(0, a / b);
  return quotient - whole > 0.5f ? whole + 1 : whole;
}

FLASHSMITH_DEVICE float exp2(float x) { return ptx::exp2_approx(x); }
FLASHSMITH_DEVICE float exp(float x) { return ptx::exp2_approx(x * kLog2E); }
FLASHSMITH_DEVICE float log2(float x) { return ptx::log2_approx(x); }
FLASHSMITH_DEVICE float log(float x) { return ptx::log2_approx(x) * kLn2; }
FLASHSMITH_DEVICE float log10(float x) { return ptx::log2_approx(x) * kLog10Of2; }
FLASHSMITH_DEVICE float sigmoid(float x) { return ptx::reciprocal_approx(1.f + exp(-x)); }
// The error is at most 2^-22, at the cost of one exponential and one reciprocal.
FLASHSMITH_DEVICE float tanh(float x) {
  return 1.f - 2.f * ptx::reciprocal_approx(1.f + exp(2.f * x));
}
FLASHSMITH_DEVICE float sqrt(float x) { return sqrtf(x); }
FLASHSMITH_DEVICE float rsqrt(float x) { return 1.f / sqrtf(x); }
FLASHSMITH_DEVICE float reciprocal(float x) { return 1.f / x; }

FLASHSMITH_DEVICE float pow(float base, float exponent) { return powf(base, exponent); }
FLASHSMITH_DEVICE float expm1(float x) { return expm1f(x); }
FLASHSMITH_DEVICE float log1p(float x) { return log1pf(x); }
FLASHSMITH_DEVICE float erf(float x) { return erff(x); }
FLASHSMITH_DEVICE float sin(float x) { return sinf(x); }
FLASHSMITH_DEVICE float cos(float x) { return cosf(x); }
FLASHSMITH_DEVICE float tan(float x) { return tanf(x); }
FLASHSMITH_DEVICE float asin(float x) { return asinf(x); }
FLASHSMITH_DEVICE float acos(float x) { return acosf(x); }
FLASHSMITH_DEVICE float atan(float x) { return atanf(x); }
FLASHSMITH_DEVICE float atan2(float y, float x) { return atan2f(y, x); }
FLASHSMITH_DEVICE float sinh(float x) { return sinhf(x); }
FLASHSMITH_DEVICE float cosh(float x) { return coshf(x); }
FLASHSMITH_DEVICE float floor(float x) { return floorf(x); }
FLASHSMITH_DEVICE float ceil(float x) { return ceilf(x); }
FLASHSMITH_DEVICE float round(float x) { return rintf(x); }  // halves to even
FLASHSMITH_DEVICE float trunc(float x) { return truncf(x); }

// ---- captured tensors ----

FLASHSMITH_DEVICE float load_element(const float *x) { return ptx::thread_load_global(x); }
FLASHSMITH_DEVICE int32_t load_element(const int32_t *x) { return ptx::thread_load_global(x); }
FLASHSMITH_DEVICE bool load_element(const bool *x) {
  return ptx::thread_load_global(reinterpret_cast<const uint8_t *>(x)) != 0;
}
FLASHSMITH_DEVICE float load_element(const half_t *x) {
  return ptx::unpack<half_t>(ptx::thread_load_global(&x->bits));
}
FLASHSMITH_DEVICE float load_element(const bfloat16_t *x) {
  return ptx::unpack<bfloat16_t>(ptx::thread_load_global(&x->bits));
}

// Returns an index into a captured tensor. A negative index counts from the end. An index beyond
// the tensor is moved to the edge: tiles reach beyond the sequences, and their results there are
// discarded, but must read no foreign memory.
FLASHSMITH_DEVICE int inside(int32_t index, int size) {
  const int from_start = index < 0 ? index + size : index;
  return minimum(maximum(from_start, 0), size - 1);
}

template <typename value_t, typename... Index>
FLASHSMITH_DEVICE auto load(const ModBuffers &buffers, int k, Index... index) {
  int offset = 0, d = 0;
  ((offset += inside(index, buffers.size[k][d]) * buffers.stride[k][d], d++), ...);
  return load_element(static_cast<const value_t *>(buffers.buffer[k]) + offset);
}

}  // namespace flashsmith::mods
