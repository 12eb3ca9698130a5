// Prepares scores for their exponentials in the backward: the changes of score.cuh with their
// derivatives, and the mask, for fragments whose rows are queries or keys.
#pragma once

#include <cmath>

#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/mods/gradient.cuh"

namespace flashsmith {

// Changes the scores of a head, one by one, in the order of ScoreChanges.
template <typename value_t, bool kSoftcap, bool kAlibi, bool kBias, typename User,
          typename UserGradient>
class ScoreGradients {
  const ScoreArgs &args_;
  const ModBuffers &buffers_;
  const Head head_;
  const int seq_len_q_, seq_len_k_, diagonal_;
  float slope_ = 0;
  const uint16_t *bias_ = nullptr;

 public:
  static constexpr bool kChanges =
      kSoftcap || kAlibi || kBias || User::kChangesScore || User::kHides;
  // Whether the derivative of a change is not 1.
  static constexpr bool kHasFactor = kSoftcap || !UserGradient::kIsOne;

  template <SequencePolicy Sequence>
  FLASHSMITH_DEVICE ScoreGradients(const ProblemArgs &problem, const Sequence &sequence,
                                   const Head &head)
      : args_(problem.score),
        buffers_(problem.mod_buffers),
        head_(head),
        seq_len_q_(sequence.seq_len_q()),
        seq_len_k_(sequence.seq_len_k()),
        diagonal_(sequence.diagonal()) {
    if constexpr (kAlibi) {
      slope_ = ptx::thread_load_global(args_.alibi_slopes + head.batch * args_.alibi_batch_stride +
                                       head.head);
    }
    if constexpr (kBias) {
      bias_ = static_cast<const uint16_t *>(args_.bias) + head.batch * args_.bias_batch_stride +
              head.head * args_.bias_head_stride;
    }
  }

  // Changes q k^T of a query and a key. Sets `factor` to the derivative with respect to the scaled
  // score.
  FLASHSMITH_DEVICE float operator()(float score, int row, int key, float &factor) const {
    const Key place{key, 0};
    score *= args_.scale;
    factor = 1.f;
    if constexpr (!UserGradient::kIsOne) {
      factor = UserGradient::factor(score, head_.batch, head_.head, row, place, buffers_);
    }
    if constexpr (User::kChangesScore) {
      score = User::score(score, head_.batch, head_.head, row, place, buffers_);
    }
    if constexpr (kSoftcap) {
      const float bent = ptx::tanh_approx(score * args_.inverse_cap);
      score = args_.cap * bent;
      factor *= 1.f - bent * bent;
    }
    if constexpr (kAlibi) score -= slope_ * fabsf(static_cast<float>(row + diagonal_ - key));
    if constexpr (kBias) {
      if (row < seq_len_q_ && key < seq_len_k_) {
        score += ptx::unpack<value_t>(
            ptx::thread_load_global(bias_ + row * args_.bias_row_stride + key));
      }
    }
    if constexpr (User::kHides) {
      if (!User::visible(head_.batch, head_.head, row, place, buffers_)) score = -INFINITY;
    }
    return score;
  }
};

// Changes a fragment of scores, and sets the factors of their gradients. `row` and `column` are the
// lane's first element, in the sequence.
template <typename Traits, RowsAre kRowsAre, int kElements>
FLASHSMITH_DEVICE void change_scores_and_factors(float (&S)[kElements], float (&factor)[kElements],
                                                 const ProblemArgs &problem,
                                                 const typename Traits::Sequence &sequence,
                                                 const Head &head, int row, int column) {
  using Score = typename Traits::Score;
  if constexpr (!Score::kChanges) return;
  const Score change(problem, sequence, head);
#pragma unroll
  for (int i = 0; i < kElements; i++) {
    const int own_row = row + half_of(i) * kRowsPerHalf, own_column = column + column_of(i);
    if constexpr (kRowsAre == RowsAre::queries) {
      S[i] = change(S[i], own_row, own_column, factor[i]);
    } else {
      S[i] = change(S[i], own_column, own_row, factor[i]);
    }
  }
}

// Sets to -inf the scores that the mask hides in a fragment whose rows are keys. `key` and `query`
// are the lane's first element.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void mask_keys(float (&S)[kElements], const ProblemArgs &problem,
                                 const typename Traits::Sequence &sequence, int key, int query) {
  using Mask = typename Traits::Mask;
  constexpr int kFar = 1 << 30;
#pragma unroll
  for (int half = 0; half < kHalves; half++) {
    const int own_key = key + half * kRowsPerHalf, beside = own_key - sequence.diagonal();
    int first = Mask::kAhead ? beside - problem.band.ahead - query : -kFar;
    if (own_key >= sequence.seq_len_k()) first = kFar;
    const int last = Mask::kBehind ? beside + problem.band.behind - query : kFar;
#pragma unroll
    for (int i = 0; i < kElements / 2; i++) {
      const int element = i / 2 * 4 + half * 2 + i % 2;
      if (column_of(element) < first) S[element] = -INFINITY;
      if constexpr (Mask::kBehind) {
        if (column_of(element) > last) S[element] = -INFINITY;
      }
    }
  }
}

}  // namespace flashsmith
