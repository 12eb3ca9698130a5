// How many queries and keys one entry of the batch has.
#pragma once

#include <concepts>

#include "flashsmith/params.h"
#include "flashsmith/ptx/platform.cuh"

namespace flashsmith {

template <typename T>
concept SequencePolicy = requires(const T sequence, const ProblemArgs &problem) {
  T(problem, 0);  // of this entry of the batch
  { sequence.seq_len_q() } -> std::same_as<int>;
  { sequence.seq_len_k() } -> std::same_as<int>;
};

// Every entry of a dense tensor has the same lengths.
class DenseSequence {
  const ProblemArgs *problem_;

 public:
  FLASHSMITH_DEVICE DenseSequence(const ProblemArgs &problem, int /*batch*/) : problem_(&problem) {}

  FLASHSMITH_DEVICE int seq_len_q() const { return problem_->seq_len_q; }
  FLASHSMITH_DEVICE int seq_len_k() const { return problem_->seq_len_k; }
};
static_assert(SequencePolicy<DenseSequence>);

}  // namespace flashsmith
