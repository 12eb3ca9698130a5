// Changes scores before the mask: the user's score_mod, a cap, a penalty for distance, a bias.
#pragma once

#include <concepts>

#include "flashsmith/attention/base_two.cuh"
#include "flashsmith/attention/fragment.cuh"
#include "flashsmith/attention/sequence.cuh"

namespace flashsmith {

// A head of a batch entry.
struct Head {
  int head, batch;
};

// A key of a block. `column` is its distance from the lane's first key, a constant where loops are
// unrolled.
struct Key {
  int first, column;

  FLASHSMITH_DEVICE int index() const { return first + column; }
};

// The user's score_mod and mask_mod. Generated units specialise it for the hash of the functions.
template <int64_t kHash>
struct UserScore;

template <>
struct UserScore<0> {
  static constexpr bool kChangesScore = false, kHides = false;

  static FLASHSMITH_DEVICE float score(float score, int, int, int, Key, const ModBuffers &) {
    return score;
  }
  static FLASHSMITH_DEVICE bool visible(int, int, int, Key, const ModBuffers &) { return true; }
};

// `kChanges`: scores are changed, so that the softmax gets them scaled and in base 2. `kMayHide`: a
// finite score may become -inf. `kHasRanges`: the user's key ranges tell beforehand which keys are
// hidden.
template <typename T>
concept ScorePolicy = requires {
  { T::kChanges } -> std::convertible_to<bool>;
  { T::kMayHide } -> std::convertible_to<bool>;
  { T::kHasRanges } -> std::convertible_to<bool>;
};

// Changes the scores of one row, one by one; the results are in base 2.
template <typename value_t, bool kSoftcap, bool kAlibi, bool kBias, typename User>
class ScoreChanges {
  const ScoreArgs &args_;
  const ModBuffers &buffers_;
  const Head head_;
  const int row_, first_key_;
  float slope_ = 0;
  float distance_ = 0;              // from the row's diagonal back to the first key
  const uint16_t *bias_ = nullptr;  // null: the row is beyond the sequence
  int n_keys_ = 0;

 public:
  static constexpr bool kUser = User::kChangesScore || User::kHides;
  static constexpr bool kChanges = kSoftcap || kAlibi || kBias || kUser;
  static constexpr bool kMayHide = kBias || kUser;
  // Whether a change is not proportional to the score.
  static constexpr bool kBends = User::kChangesScore || kSoftcap;
  static constexpr bool kHasRanges = User::kHides;

  template <SequencePolicy Sequence>
  FLASHSMITH_DEVICE ScoreChanges(const ProblemArgs &problem, const Sequence &sequence,
                                 const Head &head, int row, int first_key)
      : args_(problem.score),
        buffers_(problem.mod_buffers),
        head_(head),
        row_(row),
        first_key_(first_key) {
    if constexpr (kAlibi) {
      slope_ = in_base_two(ptx::thread_load_global(
          args_.alibi_slopes + head.batch * args_.alibi_batch_stride + head.head));
      distance_ = static_cast<float>(row + sequence.diagonal() - first_key);
    }
    if constexpr (kBias) {
      if (row >= sequence.seq_len_q()) return;
      n_keys_ = sequence.seq_len_k();
      bias_ = static_cast<const uint16_t *>(args_.bias) + head.batch * args_.bias_batch_stride +
              head.head * args_.bias_head_stride + row * args_.bias_row_stride;
    }
  }

  // Changes the score of the key that is `column` keys behind the first.
  FLASHSMITH_DEVICE float operator()(float score, int column) const {
    const Key key{first_key_, column};
    score *= kBends ? args_.scale : args_.scale * kLog2e;
    if constexpr (User::kChangesScore) {
      score = User::score(score, head_.batch, head_.head, row_, key, buffers_);
      if constexpr (!kSoftcap) score = in_base_two(score);
    }
    if constexpr (kSoftcap) {
      score = args_.cap * kLog2e * ptx::tanh_approx(score * args_.inverse_cap);
    }
    if constexpr (kAlibi) {
      score -= slope_ * fabsf(distance_ - static_cast<float>(column));
    }
    if constexpr (kBias) {
      if (key.index() < n_keys_) {
        score += in_base_two(ptx::unpack<value_t>(ptx::thread_load_global(bias_ + key.index())));
      }
    }
    if constexpr (User::kHides) {
      if (!User::visible(head_.batch, head_.head, row_, key, buffers_)) score = -INFINITY;
    }
    return score;
  }
};
static_assert(ScorePolicy<ScoreChanges<half_t, true, true, true, UserScore<0>>>);

// Returns the head of K and V that a head of Q shares.
FLASHSMITH_DEVICE int head_of_keys(const ProblemArgs &problem, int head) {
  return head / (problem.n_heads / problem.n_heads_kv);
}

// Returns the FP8 scale of a head of K and V in a batch entry.
FLASHSMITH_DEVICE float load_scale(const Fp8Scale &of, int batch, int head) {
  if (of.scale == nullptr) return 1.f;
  return ptx::thread_load_global(of.scale + batch * of.batch_stride + head * of.head_stride);
}

// Changes the scores of 16 rows of a block of K. `row` is the row of this lane's first element, in
// the sequence.
template <typename Traits, int kElements>
FLASHSMITH_DEVICE void change_scores(float (&S)[kElements], const ProblemArgs &problem,
                                     const typename Traits::Sequence &sequence, const Head &head,
                                     int row, int block) {
  using Score = typename Traits::Score;
  if constexpr (!Score::kChanges) return;
  const int first_key = block * Traits::B_c + first_column(ptx::thread_index());
#pragma unroll
  for (int half = 0; half < kHalves; half++) {
    const Score change(problem, sequence, head, row + half * kRowsPerHalf, first_key);
#pragma unroll
    for (int i = 0; i < kElements / 2; i++) {
      const int element = i / 2 * 4 + half * 2 + i % 2;
      S[element] = change(S[element], column_of(element));
    }
  }
}

}  // namespace flashsmith
