// The number of queries and keys of a batch entry, and their place in the tensors.
#pragma once

#include <concepts>
#include <type_traits>

#include "flashsmith/params.h"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/platform.cuh"

namespace flashsmith {

// The place of a sequence's first row in a tensor.
struct RowOffset {
  int batch, row;
};

template <typename T>
concept SequencePolicy = requires(const T sequence, const ProblemArgs &problem) {
  { T::kVarlen } -> std::convertible_to<bool>;  // whether batch entries differ
  T(problem, 0);                                // of this batch entry
  { sequence.seq_len_q() } -> std::same_as<int>;
  { sequence.seq_len_k() } -> std::same_as<int>;
  { sequence.diagonal() } -> std::same_as<int>;  // of query 0
  { sequence.queries() } -> std::same_as<RowOffset>;
  { sequence.keys() } -> std::same_as<RowOffset>;
  { sequence.rows_q() } -> std::same_as<int>;  // rows of one batch entry of the tensor
};

// Every batch entry of a dense tensor has the same lengths.
class DenseSequence {
  const ProblemArgs *problem_;
  int batch_;

 public:
  static constexpr bool kVarlen = false;

  FLASHSMITH_DEVICE DenseSequence(const ProblemArgs &problem, int batch)
      : problem_(&problem), batch_(batch) {}

  FLASHSMITH_DEVICE int seq_len_q() const { return problem_->seq_len_q; }
  FLASHSMITH_DEVICE int seq_len_k() const { return problem_->seq_len_k; }
  FLASHSMITH_DEVICE int diagonal() const { return problem_->band.diagonal; }
  FLASHSMITH_DEVICE RowOffset queries() const { return {batch_, 0}; }
  FLASHSMITH_DEVICE RowOffset keys() const { return {batch_, 0}; }
  FLASHSMITH_DEVICE int rows_q() const { return problem_->seq_len_q; }
};
static_assert(SequencePolicy<DenseSequence>);

// Varlen: sequences are packed one after the other, or use the first rows of their entry of a dense
// tensor. Lengths and offsets come from the device, so they are clamped to the tensor: nothing else
// is ever touched.
class VarlenSequence {
  struct Side {
    RowOffset place;
    int length;
  };

  Side q_, k_;
  int diagonal_, rows_q_;

  static FLASHSMITH_DEVICE int clamp(int value, int maximum) {
    return value < 0 ? 0 : value < maximum ? value : maximum;
  }

  static FLASHSMITH_DEVICE Side side(const int32_t *cu_seqlens, const int32_t *seqused, int rows,
                                     int batch) {
    Side side{{batch, 0}, rows};
    if (cu_seqlens != nullptr) {
      const int begin = clamp(ptx::thread_load_global(cu_seqlens + batch), rows);
      const int end = clamp(ptx::thread_load_global(cu_seqlens + batch + 1), rows);
      side = {{0, begin}, clamp(end - begin, rows)};
    }
    if (seqused != nullptr) {
      side.length = clamp(ptx::thread_load_global(seqused + batch), side.length);
    }
    return side;
  }

 public:
  static constexpr bool kVarlen = true;

  FLASHSMITH_DEVICE VarlenSequence(const ProblemArgs &problem, int batch)
      : q_(side(problem.varlen.cu_seqlens_q, problem.varlen.seqused_q, problem.varlen.rows_q,
                batch)),
        k_(side(problem.varlen.cu_seqlens_k, problem.varlen.seqused_k, problem.varlen.rows_k,
                batch)),
        diagonal_(problem.band.top_left ? 0 : k_.length - q_.length),
        rows_q_(problem.varlen.rows_q) {}

  FLASHSMITH_DEVICE int seq_len_q() const { return q_.length; }
  FLASHSMITH_DEVICE int seq_len_k() const { return k_.length; }
  FLASHSMITH_DEVICE int diagonal() const { return diagonal_; }
  FLASHSMITH_DEVICE RowOffset queries() const { return q_.place; }
  FLASHSMITH_DEVICE RowOffset keys() const { return k_.place; }
  FLASHSMITH_DEVICE int rows_q() const { return rows_q_; }
};
static_assert(SequencePolicy<VarlenSequence>);

template <bool kVarlen>
using SequenceOf = std::conditional_t<kVarlen, VarlenSequence, DenseSequence>;

}  // namespace flashsmith
