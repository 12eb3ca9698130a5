// The packed GQA rows of a work tile: query by query, the heads of Q that share a head of the cache
// side by side.
#pragma once

#include "flashsmith/attention/key_splits.cuh"

namespace flashsmith {

template <typename Traits>
class DecodeRows {
  const DecodeProblem &problem_;
  const int head_, first_;  // the first head of Q that shares the head of the cache; first row

 public:
  FLASHSMITH_DEVICE DecodeRows(const DecodeProblem &problem, const KeySplit &split)
      : problem_(problem),
        head_(split.head * problem.group.value),
        first_(split.Q_block * Traits::B_r) {}

  FLASHSMITH_DEVICE int count() const {
    const int left = problem_.seq_len_q * problem_.group.value - first_;
    return left < Traits::B_r ? left : Traits::B_r;
  }
  FLASHSMITH_DEVICE int query(int row) const { return quotient(first_ + row, problem_.group); }
  FLASHSMITH_DEVICE int head(int row) const {
    return head_ + first_ + row - query(row) * problem_.group.value;
  }

  // Returns the offset of a row in a tensor with these strides.
  FLASHSMITH_DEVICE int64_t offset(const TensorStrides &strides, int batch, int row) const {
    return batch * strides.batch + query(row) * strides.seq + head(row) * strides.head;
  }
};

}  // namespace flashsmith
