// Bulk copies of the rows of one sequence of a tensor. Rows beyond its end do not exist: loads give
// zeros, stores do not touch them.
//
// A dense tensor's map has the dimensions d_head, sequence, head and batch. The end of a varlen
// sequence is not the tensor's, so its map has other dimensions: d_head, row, head, end, shift. A
// sequence of n rows begins at row kVarlenRows - n of the second dimension, so that the sequence's
// end is the dimension's. `end`, the sequence's end in the tensor, compensates for n, and `shift`
// for kVarlenRows, since addresses wrap around at 2^64. With R = kVarlenRows and rows of S bytes,
// row i of the sequence is at
//
//    (R - n + i) S + end S + R (kVarlenShift - S) = (end - n + i) S + 2^64
#pragma once

#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

// The rows of one head of a sequence.
struct Rows {
  RowOffset place;
  int length, head;
  int batch_rows;  // rows between batch entries of the tensor

  // Returns the sequence's end, in rows of the tensor.
  FLASHSMITH_DEVICE int end() const { return place.batch * batch_rows + place.row + length; }
  FLASHSMITH_DEVICE int varlen_row(int row) const { return kVarlenRows - length + row; }
};

// Copies the box at a column and a row of the sequence to `destination`.
template <typename Traits>
FLASHSMITH_DEVICE void load_rows(ptx::shared_address destination, const ptx::TensorMap &map,
                                 ptx::shared_address barrier, int column, int row,
                                 const Rows &rows) {
  if constexpr (Traits::Sequence::kVarlen) {
    ptx::tma_load(destination, map, barrier, column, rows.varlen_row(row), rows.head, rows.end(),
                  kVarlenRows);
  } else {
    ptx::tma_load(destination, map, barrier, column, row, rows.head, rows.place.batch);
  }
}

// Copies the box to all blocks of the cluster.
template <typename Traits>
FLASHSMITH_DEVICE void load_rows_of_cluster(ptx::shared_address destination,
                                            const ptx::TensorMap &map, ptx::shared_address barrier,
                                            int column, int row, const Rows &rows) {
  constexpr uint16_t kAllBlocks = (1 << Traits::cluster_size) - 1;
  if constexpr (Traits::Sequence::kVarlen) {
    ptx::tma_load_multicast(destination, map, barrier, kAllBlocks, column, rows.varlen_row(row),
                            rows.head, rows.end(), kVarlenRows);
  } else {
    ptx::tma_load_multicast(destination, map, barrier, kAllBlocks, column, row, rows.head,
                            rows.place.batch);
  }
}

// Copies the box of packed heads at a column and a query of the sequence; rows.head is the first of
// the heads. The map has the head before the sequence.
template <typename Traits>
FLASHSMITH_DEVICE void load_packed_rows(ptx::shared_address destination, const ptx::TensorMap &map,
                                        ptx::shared_address barrier, int column, int query,
                                        const Rows &rows) {
  if constexpr (Traits::Sequence::kVarlen) {
    ptx::tma_load(destination, map, barrier, column, rows.head, rows.varlen_row(query), rows.end(),
                  kVarlenRows);
  } else {
    ptx::tma_load(destination, map, barrier, column, rows.head, query, rows.place.batch);
  }
}

// Stores the box from `source`; if Traits::packed_heads, that of packed heads.
template <typename Traits>
FLASHSMITH_DEVICE void store_rows(const ptx::TensorMap &map, ptx::shared_address source, int column,
                                  int row, const Rows &rows) {
  constexpr bool kVarlen = Traits::Sequence::kVarlen;
  const int place = kVarlen ? rows.varlen_row(row) : row;
  const int second = Traits::packed_heads ? rows.head : place;
  const int third = Traits::packed_heads ? place : rows.head;
  if constexpr (kVarlen) {
    ptx::tma_store(map, source, column, second, third, rows.end(), kVarlenRows);
  } else {
    ptx::tma_store(map, source, column, second, third, rows.place.batch);
  }
}

}  // namespace flashsmith::sm90
