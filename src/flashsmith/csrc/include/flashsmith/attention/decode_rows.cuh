// The packed GQA rows of a work tile: query by query, the heads of Q that share a head of the cache
// side by side. The work tiles of a head have equally many rows, so that all take equally long:
// blocks that visit the same keys then stay together, and find them in L2.
#pragma once

#include "flashsmith/attention/work_tiles.cuh"

namespace flashsmith {

template <typename Traits>
class DecodeRows {
  const DecodeProblem &problem_;
  const int head_;  // the first head of Q that shares the head of the cache
  int first_, count_;

 public:
  FLASHSMITH_DEVICE DecodeRows(const DecodeProblem &problem, const KeySplit &split)
      : problem_(problem), head_(split.head * problem.group.value) {
    const int all = problem.seq_len_q * problem.group.value;  // rows of the head of the cache
    const int of_tile = quotient_up(all, problem.Q_blocks);
    first_ = split.Q_block * of_tile;
    count_ = all - first_ < of_tile ? all - first_ : of_tile;
  }

  FLASHSMITH_DEVICE int count() const { return count_; }
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
