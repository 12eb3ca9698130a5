// The online softmax of FlashAttention-2 (section 3.1, algorithm 1), in base 2.
//
// P = 2^(S * scale - R), where the reference R of a row stands in for the paper's maximum m: any R
// near it cancels in O / l. With lazy_rescale_log2 = n it may fall behind by n before O and l are
// rescaled. With stale_maximum it is set n ahead, so that growth within the bound leaves exponents
// negative: the conjunction of sign bits says so, half an instruction a score and no exchange
// between lanes, and only where it does not the maxima are looked for.
#pragma once

#include <cmath>

#include "flashsmith/ptx/math.cuh"
#include "flashsmith/sm90/gemm.cuh"

namespace flashsmith::sm90 {

// 2^x for x <= 2^6 without the special-function unit: rounding to an integer by addition, a
// polynomial on [-1/2, 1/2] (the minimax cubic: relative error 7.5e-5, below the rounding of P),
// and the integer added to its exponent.
FLASHSMITH_DEVICE float exp2_polynomial(float x) {
  constexpr float kRoundToInteger = 12582912.f;  // 1.5 * 2^23
  x = fmaxf(x, -126.f);
  const float rounded = x + kRoundToInteger;
  const float f = x - (rounded - kRoundToInteger);
  const float p =
      fmaf(fmaf(fmaf(0.05517166853f, f, 0.2426111251f), f, 0.6932609677f), f, 0.9999280572f);
  return ptx::bits_float(ptx::float_bits(p) + (ptx::float_bits(rounded) << 23));
}

template <typename Traits>
class Softmax {
  static constexpr float kLead =
      Traits::config.stale_maximum ? Traits::config.lazy_rescale_log2 : 0;
  static constexpr float kBound =
      Traits::config.stale_maximum ? 0 : Traits::config.lazy_rescale_log2;

  float scale_log2_;  // softmax_scale * log2(e)
  float R_[2];        // reference of rows r and r + 8
  float l_[2];        // sum of P over this lane's columns
  float alpha_[2];    // what the last step asks O to be multiplied with
  bool rescale_ = true;

 public:
  FLASHSMITH_DEVICE explicit Softmax(float scale_log2) : scale_log2_(scale_log2) { reset(); }

  // Before the first block of a tile.
  FLASHSMITH_DEVICE void reset() {
    R_[0] = R_[1] = -INFINITY;
    l_[0] = l_[1] = 0.f;
  }

  // S becomes P, still in fp32. kFresh: R may be -inf, because no block came before or because a
  // mask has hidden all of them.
  template <bool kFresh>
  FLASHSMITH_DEVICE void step(SAccumulator<Traits> &S) {
    alpha_[0] = alpha_[1] = 1.f;
    if constexpr (Traits::config.stale_maximum && !kFresh) {
      subtract_reference(S, R_[0], R_[1]);
      rescale_ = ptx::vote_any(any_positive(S));
      if (rescale_) catch_up(S);
    } else {
      const float maximum[2] = {row_maximum(S, 0) * scale_log2_, row_maximum(S, 1) * scale_log2_};
      if constexpr (Traits::config.lazy_rescale_log2 > 0) {
        rescale_ = ptx::vote_any(is_due(maximum, 0) || is_due(maximum, 1));
      }
      if (rescale_) raise_reference(maximum);
      // A row of -inf so far: -inf - -inf must not become NaN.
      subtract_reference(S, kFresh && R_[0] == -INFINITY ? 0.f : R_[0],
                         kFresh && R_[1] == -INFINITY ? 0.f : R_[1]);
    }
    exponentiate<kFresh ? 0 : Traits::config.fma_exponentials>(S);
  }

  // Brings O to the reference of the last step.
  FLASHSMITH_DEVICE void rescale(OAccumulator<Traits> &O) const {
    if (!rescale_) return;
#pragma unroll
    for (int i = 0; i < Traits::d_head / 2; i++) O[i] *= alpha_[i / 2 % 2];
  }

  // The sum of a row, when all blocks are done.
  FLASHSMITH_DEVICE float row_sum(int half) const {
    const float sum = l_[half] + ptx::shuffle_xor<1>(l_[half]);
    return sum + ptx::shuffle_xor<2>(sum);
  }

  // The logarithm of the sum of exp(score) over a row with this row sum; -inf if there is none.
  FLASHSMITH_DEVICE float log_sum_exp(int half, float sum) const {
    constexpr float kLn2 = 0.6931471805599453f;
    return sum == 0.f ? -INFINITY : (R_[half] + ptx::log2_approx(sum)) * kLn2;
  }

 private:
  FLASHSMITH_DEVICE float row_maximum(const SAccumulator<Traits> &S, int half) const {
    float maximum = fmaxf(S[2 * half], S[2 * half + 1]);
#pragma unroll
    for (int i = 4; i < Traits::B_c / 2; i += 4) {
      maximum = fmaxf(maximum, fmaxf(S[i + 2 * half], S[i + 2 * half + 1]));
    }
    return quad_maximum(maximum);
  }

  static FLASHSMITH_DEVICE float quad_maximum(float value) {
    value = fmaxf(value, ptx::shuffle_xor<1>(value));
    return fmaxf(value, ptx::shuffle_xor<2>(value));
  }

  FLASHSMITH_DEVICE bool is_due(const float (&maximum)[2], int half) const {
    return maximum[half] > R_[half] + kBound;
  }

  FLASHSMITH_DEVICE void raise_reference(const float (&maximum)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (!is_due(maximum, half)) continue;
      const float reference = maximum[half] + kLead;
      alpha_[half] = ptx::exp2_approx(R_[half] - reference);
      R_[half] = reference;
      l_[half] *= alpha_[half];
    }
  }

  FLASHSMITH_DEVICE void subtract_reference(SAccumulator<Traits> &S, float R0, float R1) const {
#pragma unroll
    for (int i = 0; i < Traits::B_c / 2; i++) {
      S[i] = fmaf(S[i], scale_log2_, -(i / 2 % 2 ? R1 : R0));
    }
  }

  static FLASHSMITH_DEVICE bool any_positive(const SAccumulator<Traits> &S) {
    uint32_t signs = ptx::float_bits(S[0]);
#pragma unroll
    for (int i = 1; i < Traits::B_c / 2; i++) signs &= ptx::float_bits(S[i]);
    return static_cast<int32_t>(signs) >= 0;
  }

  // S holds exponents, some of which exceed the reference: raises it.
  FLASHSMITH_DEVICE void catch_up(SAccumulator<Traits> &S) {
    float shift[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float excess = row_maximum(S, half);
      shift[half] = excess > 0.f ? excess + kLead : 0.f;
      alpha_[half] = ptx::exp2_approx(-shift[half]);
      R_[half] += shift[half];
      l_[half] *= alpha_[half];
    }
#pragma unroll
    for (int i = 0; i < Traits::B_c / 2; i++) S[i] -= shift[i / 2 % 2];
  }

  // Of -inf the polynomial is not zero, so that fresh blocks do without.
  template <int kPolynomials>
  FLASHSMITH_DEVICE void exponentiate(SAccumulator<Traits> &S) {
    float sum[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < Traits::B_c / 2; i++) {
      // Evenly spread over the elements.
      const bool polynomial = i * kPolynomials % 16 < kPolynomials;
      S[i] = polynomial ? exp2_polynomial(S[i]) : ptx::exp2_approx(S[i]);
      sum[i / 2 % 2] += S[i];
    }
    l_[0] += sum[0];
    l_[1] += sum[1];
  }
};

// P in the input type, as the operand of P V.
template <typename Traits>
FLASHSMITH_DEVICE void convert_P(POperand<Traits> &P, const SAccumulator<Traits> &S) {
#pragma unroll
  for (int i = 0; i < Traits::B_c / 4; i++) {
    P[i / 4][i % 4] = ptx::pack<typename Traits::value_t>(S[2 * i], S[2 * i + 1]);
  }
}

}  // namespace flashsmith::sm90
