// The online softmax of FlashAttention-2 (section 3.1, algorithm 1), in base 2, for the 16 rows of
// a fragment.
//
// P = 2^(S * scale - R), where the reference R of a row stands in for the paper's maximum m: any R
// near it cancels in O / l.
//
// Changed scores (ScoreChanges) come in base 2 and need no scale: where they are as large as FP32
// allows, S * scale - R would be the rounding error of R.
#pragma once

#include <cmath>

#include "flashsmith/attention/base_two.cuh"
#include "flashsmith/attention/fragment.cuh"

namespace flashsmith {

// Computes 2^x for x <= 2^6 without the special-function unit: it rounds to an integer by an
// addition, evaluates a polynomial on [-1/2, 1/2] (the minimax cubic: relative error 7.5e-5, below
// the rounding of P), and adds the integer to the exponent.
FLASHSMITH_DEVICE float exp2_polynomial(float x) {
  constexpr float kRoundToInteger = 12582912.f;  // 1.5 * 2^23
  x = fmaxf(x, -126.f);
  const float rounded = x + kRoundToInteger;
  const float f = x - (rounded - kRoundToInteger);
  const float p =
      fmaf(fmaf(fmaf(0.05517166853f, f, 0.2426111251f), f, 0.6932609677f), f, 0.9999280572f);
  return ptx::bits_float(ptx::float_bits(p) + (ptx::float_bits(rounded) << 23));
}

// The softmax statistics of a row: the sum of its exponentials relative to a reference. O has to be
// multiplied with `kept` before it is divided by the sum.
struct SoftmaxStats {
  float reference, sum, kept;

  // Returns log(sum of exp(score)); -inf for an empty sum.
  FLASHSMITH_DEVICE float log_sum_exp() const {
    return sum == 0.f ? -INFINITY : (reference + ptx::log2_approx(sum)) * kLn2;
  }
};

constexpr int kE4m3MaxLog2 = 8;  // e4m3 has powers of two up to 2^8; its largest number is 448

// The shortcuts of the softmax.
struct SoftmaxPolicy {
  // The scale is part of the exponential, one fused multiply-add an element, and each lane keeps
  // the sums of its columns until the end; else scores are scaled first, and sums reduced at every
  // step.
  bool fold_scale;
  // R may lag behind the max by this before O and l are rescaled: P stays within
  // 2^lazy_rescale_log2, far from overflow in FP16. 0: they are rescaled at every step, or, with
  // max_log2, where the max has grown.
  int lazy_rescale_log2;
  // R is set lazy_rescale_log2 ahead, so that exponents stay negative while the max grows within
  // the bound. The conjunction of sign bits shows that, with half an instruction a score and no
  // exchange between lanes; only where it fails are the maxima computed.
  bool stale_maximum;
  int fma_exponentials;  // how many of 16 exponentials are polynomials on the FMA units
  // P stays within 2^max_log2. Where R is new, the largest weight is lower by a factor of
  // 2^lazy_rescale_log2.
  int max_log2 = stale_maximum ? 0 : lazy_rescale_log2;
  // R is raised without a branch, so that exponentials of one row begin while the max of the other
  // is computed. A step with kFresh has the branch.
  bool branchless = false;
  // A branchless step compares scores as integers, once every row of the warp has had one that was
  // not negative: an instruction compares three integers, but two floats.
  bool compare_bits = false;
};

// Tells whether the scores of a row of the warp may all have been negative so far, where this
// matters. It is a base class, which is empty elsewhere: an unused member would change some
// kernels' machine code.
template <bool kMatters>
struct SignsSoFar {
  bool all_negative = true;
};
template <>
struct SignsSoFar<false> {};

template <typename Traits>
class Softmax : SignsSoFar<Traits::softmax.compare_bits> {
  static constexpr bool kFoldScale = Traits::softmax.fold_scale;
  static constexpr bool kScaled = Traits::Score::kChanges;
  static constexpr bool kLazy =
      Traits::softmax.lazy_rescale_log2 > 0 || Traits::softmax.max_log2 > 0;
  static constexpr float kBound = Traits::softmax.max_log2;
  static constexpr float kLead = Traits::softmax.lazy_rescale_log2 - Traits::softmax.max_log2;

  float scale_log2_;      // softmax_scale * log2(e)
  float R_[kHalves];      // references of the lane's rows
  float l_[kHalves];      // sums of P over this lane's columns, or over the row
  float alpha_[kHalves];  // factors of O from the last step
  bool rescale_ = true;

 public:
  // Called once, before anything else.
  FLASHSMITH_DEVICE void start(float scale_log2) {
    scale_log2_ = scale_log2;
    reset();
  }

  FLASHSMITH_DEVICE void set_scale(float scale_log2) { scale_log2_ = scale_log2; }

  // Called before the first block of a tile.
  FLASHSMITH_DEVICE void reset() {
    R_[0] = R_[1] = -INFINITY;
    l_[0] = l_[1] = 0.f;
    if constexpr (Traits::softmax.compare_bits) this->all_negative = true;
  }

  // Replaces S by P, still in FP32. kFresh: R may be -inf, because no block came before or a mask
  // has hidden all keys so far.
  template <bool kFresh, int kElements>
  FLASHSMITH_DEVICE void step(float (&S)[kElements]) {
    step<kFresh>(S, [](float) {});
  }

  // Calls `then` with the reference of the first row, before the exponentials.
  template <bool kFresh, int kElements, typename Then>
  FLASHSMITH_DEVICE void step(float (&S)[kElements], Then then) {
    alpha_[0] = alpha_[1] = 1.f;
    if constexpr (!kFoldScale && !kScaled) scale(S);
    if constexpr (Traits::softmax.stale_maximum && !kFresh) {
      subtract_reference<false>(S);
      rescale_ = ptx::vote_any(any_positive(S));
      if (rescale_) catch_up(S);
    } else if constexpr (Traits::softmax.branchless && !kFresh) {
      follow_maxima(S);
      subtract_reference<false>(S);
    } else {
      const float maximum[kHalves] = {row_maximum(S, 0), row_maximum(S, 1)};
      if constexpr (kLazy) rescale_ = ptx::vote_any(is_due(maximum, 0) || is_due(maximum, 1));
      if (rescale_) raise_reference(maximum);
      subtract_reference<kFresh>(S);
    }
    then(R_[0]);
    exponentiate<kFresh ? 0 : Traits::softmax.fma_exponentials>(S);
  }

  // Works on all fragments of a warp, and rescales O to the new references. There is one rare
  // branch for all fragments, so that their exponentials stay in one basic block.
  template <bool kFresh, int kFragments>
  static FLASHSMITH_DEVICE void step(Softmax (&softmax)[kFragments],
                                     Fragment<Traits::B_c> (&S)[kFragments],
                                     Fragment<Traits::d_head> (&O)[kFragments]) {
    const auto own_maximum = [&](int i, int half) { return softmax[i].row_maximum(S[i], half); };
    step<kFresh>(softmax, S, O, own_maximum);
  }

  // Takes maximum_of(fragment, half) for the max of a row.
  template <bool kFresh, int kFragments, typename MaximumOf>
  static FLASHSMITH_DEVICE void step(Softmax (&softmax)[kFragments],
                                     Fragment<Traits::B_c> (&S)[kFragments],
                                     Fragment<Traits::d_head> (&O)[kFragments],
                                     MaximumOf maximum_of) {
    static_assert(!Traits::softmax.stale_maximum,
                  "maxima of all fragments are looked for together");
    float maximum[kFragments][kHalves];
    bool due = !kLazy;
#pragma unroll
    for (int i = 0; i < kFragments; i++) {
      if constexpr (!kFoldScale && !kScaled) softmax[i].scale(S[i]);
#pragma unroll
      for (int half = 0; half < kHalves; half++) {
        maximum[i][half] = maximum_of(i, half);
        due |= softmax[i].is_due(maximum[i], half);
      }
    }
    if (!kLazy || ptx::vote_any(due)) {
#pragma unroll
      for (int i = 0; i < kFragments; i++) {
        softmax[i].alpha_[0] = softmax[i].alpha_[1] = 1.f;
        softmax[i].raise_reference(maximum[i]);
        softmax[i].rescale(O[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kFragments; i++) {
      softmax[i].template subtract_reference<kFresh>(S[i]);
      softmax[i].template exponentiate<0>(S[i]);
    }
  }

  // Rescales O to the references of the last step.
  FLASHSMITH_DEVICE void rescale(Fragment<Traits::d_head> &O) const {
    bool due = rescale_;
    if constexpr (Traits::softmax.branchless) {
      due = ptx::vote_any(alpha_[0] != 1.f || alpha_[1] != 1.f);
    }
    if (!due) return;
#pragma unroll
    for (int i = 0; i < Traits::d_head / 2; i++) O[i] *= alpha_[half_of(i)];
  }

  // Returns the factor of O in the last step: 1 if the reference did not change.
  FLASHSMITH_DEVICE float factor(int half) const { return alpha_[half]; }

  // Returns the statistics of a row when all blocks are done.
  FLASHSMITH_DEVICE SoftmaxStats stats(int half) const {
    return {
        .reference = R_[half], .sum = kFoldScale ? sum_of_row(l_[half]) : l_[half], .kept = 1.f};
  }

 private:
  // Returns the max of the scaled scores of a row.
  template <int kElements>
  FLASHSMITH_DEVICE float row_maximum(const float (&S)[kElements], int half) const {
    return largest(S, half) * folded_scale();
  }

  template <int kElements>
  static FLASHSMITH_DEVICE float largest(const float (&S)[kElements], int half) {
    float maximum = fmaxf(S[2 * half], S[2 * half + 1]);
#pragma unroll
    for (int i = 4; i < kElements; i += 4) {
      maximum = fmaxf(maximum, fmaxf(S[i + 2 * half], S[i + 2 * half + 1]));
    }
    return reduce_row(maximum, [](float a, float b) { return fmaxf(a, b); });
  }

  static FLASHSMITH_DEVICE float sum_of_row(float value) {
    return reduce_row(value, [](float a, float b) { return a + b; });
  }

  FLASHSMITH_DEVICE float folded_scale() const {
    return kFoldScale && !kScaled ? scale_log2_ : 1.f;
  }

  template <int kElements>
  FLASHSMITH_DEVICE void scale(float (&S)[kElements]) const {
#pragma unroll
    for (int i = 0; i < kElements; i++) S[i] *= scale_log2_;
  }

  FLASHSMITH_DEVICE bool is_due(const float (&maximum)[2], int half) const {
    return maximum[half] > R_[half] + kBound;
  }

  // Raises the references of rows whose max has grown.
  template <int kElements>
  FLASHSMITH_DEVICE void follow_maxima(const float (&S)[kElements]) {
    static_assert(kBound == -kLead, "R follows every growth");
    float maximum[kHalves];
    if constexpr (!Traits::softmax.compare_bits) {
      row_maxima(S, maximum);
    } else if (this->all_negative) {
      this->all_negative = ptx::vote_any(fminf(R_[0], R_[1]) < kLead);
      row_maxima(S, maximum);
    } else {
      row_maxima_of_bits(S, maximum);
    }
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const float reference = fmaxf(R_[half], fmaf(maximum[half], folded_scale(), kLead));
      alpha_[half] = ptx::exp2_approx(R_[half] - reference);
      R_[half] = reference;
      l_[half] *= alpha_[half];
    }
  }

  // Computes the max of each row. The instructions of the two rows alternate, so that they fill
  // each other's latencies.
  template <int kElements>
  static FLASHSMITH_DEVICE void row_maxima(const float (&S)[kElements], float (&maximum)[kHalves]) {
    maximum[0] = fmaxf(S[0], S[1]);
    maximum[1] = fmaxf(S[2], S[3]);
#pragma unroll
    for (int i = 4; i < kElements; i += 2) {
      maximum[half_of(i)] = fmaxf(maximum[half_of(i)], fmaxf(S[i], S[i + 1]));
    }
    reduce_rows(maximum);
  }

  // Computes the same, but for a row whose scores are all negative one of them, not always their
  // max: as integers, floats that are not negative have their order, and are above negative ones.
  template <int kElements>
  static FLASHSMITH_DEVICE void row_maxima_of_bits(const float (&S)[kElements],
                                                   float (&maximum)[kHalves]) {
    constexpr int kChains = 2;
    const auto bits_of = [](float score) { return static_cast<int32_t>(ptx::float_bits(score)); };
    const auto larger = [](int32_t a, int32_t b) { return a > b ? a : b; };
    int32_t bits[kHalves][kChains];
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      const int32_t pair = larger(bits_of(S[i]), bits_of(S[i + 1]));
      int32_t &chain = bits[half_of(i)][i / 4 % kChains];
      chain = i / 4 < kChains ? pair : larger(chain, pair);
    }
    maximum[0] = ptx::bits_float(larger(bits[0][0], bits[0][1]));
    maximum[1] = ptx::bits_float(larger(bits[1][0], bits[1][1]));
    reduce_rows(maximum);
  }

  static FLASHSMITH_DEVICE void reduce_rows(float (&maximum)[kHalves]) {
    maximum[0] = fmaxf(maximum[0], ptx::shuffle_xor<1>(maximum[0]));
    maximum[1] = fmaxf(maximum[1], ptx::shuffle_xor<1>(maximum[1]));
    maximum[0] = fmaxf(maximum[0], ptx::shuffle_xor<2>(maximum[0]));
    maximum[1] = fmaxf(maximum[1], ptx::shuffle_xor<2>(maximum[1]));
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

  template <bool kFresh, int kElements>
  FLASHSMITH_DEVICE void subtract_reference(float (&S)[kElements]) const {
    // A row that has seen only -inf must not become NaN by -inf - -inf.
    const float R0 = kFresh && R_[0] == -INFINITY ? 0.f : R_[0];
    const float R1 = kFresh && R_[1] == -INFINITY ? 0.f : R_[1];
#pragma unroll
    for (int i = 0; i < kElements; i++) {
      S[i] = fmaf(S[i], folded_scale(), -(half_of(i) ? R1 : R0));
    }
  }

  template <int kElements>
  static FLASHSMITH_DEVICE bool any_positive(const float (&S)[kElements]) {
    uint32_t signs = ptx::float_bits(S[0]);
#pragma unroll
    for (int i = 1; i < kElements; i++) signs &= ptx::float_bits(S[i]);
    return static_cast<int32_t>(signs) >= 0;
  }

  // Raises the reference of rows with positive exponents in S.
  template <int kElements>
  FLASHSMITH_DEVICE void catch_up(float (&S)[kElements]) {
    float shift[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float excess = largest(S, half);
      shift[half] = excess > 0.f ? excess + kLead : 0.f;
      alpha_[half] = ptx::exp2_approx(-shift[half]);
      R_[half] += shift[half];
      l_[half] *= alpha_[half];
    }
#pragma unroll
    for (int i = 0; i < kElements; i++) S[i] -= shift[half_of(i)];
  }

  // The polynomial is not zero at -inf, so steps with kFresh use none.
  template <int kPolynomials, int kElements>
  FLASHSMITH_DEVICE void exponentiate(float (&S)[kElements]) {
    float sum[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < kElements; i++) {
      // Polynomials are spread evenly over the elements.
      const bool polynomial = i * kPolynomials % 16 < kPolynomials;
      S[i] = polynomial ? exp2_polynomial(S[i]) : ptx::exp2_approx(S[i]);
      sum[half_of(i)] += S[i];
    }
    l_[0] += kFoldScale ? sum[0] : sum_of_row(sum[0]);
    l_[1] += kFoldScale ? sum[1] : sum_of_row(sum[1]);
  }
};

}  // namespace flashsmith
