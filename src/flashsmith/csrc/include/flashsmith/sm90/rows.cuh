// Bulk copies of the rows of one sequence of a tensor. What lies beyond its end is not there: loads
// give zeros, stores leave it.
//
// A dense tensor's map has the dimensions d_head, sequence, head and batch. Where sequences have
// lengths of their own the end of the tensor is not theirs, and the map has other dimensions:
// d_head, row, head, end, shift. A sequence of n rows begins at row kVarlenRows - n of the second,
// so that its end is that dimension's; `end`, the sequence's in the tensor, makes up for n, and
// `shift` for kVarlenRows, as addresses wrap around: its stride is kVarlenShift less one row.
#pragma once

#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/ptx/tma.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace flashsmith::sm90 {

// Rows of one head of a sequence.
struct Rows {
  RowOffset place;
  int length, head;
  int batch_rows;  // from one entry of the tensor's batch to the next

  // Where the sequence ends, in rows of the tensor.
  FLASHSMITH_DEVICE int end() const { return place.batch * batch_rows + place.row + length; }
  FLASHSMITH_DEVICE int varlen_row(int row) const { return kVarlenRows - length + row; }
};

// The box at a column and a row of the sequence comes to `destination`.
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

// The same to all blocks of the cluster.
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

template <typename Traits>
FLASHSMITH_DEVICE void store_rows(const ptx::TensorMap &map, ptx::shared_address source, int column,
                                  int row, const Rows &rows) {
  if constexpr (Traits::Sequence::kVarlen) {
    ptx::tma_store(map, source, column, rows.varlen_row(row), rows.head, rows.end(), kVarlenRows);
  } else {
    ptx::tma_store(map, source, column, row, rows.head, rows.place.batch);
  }
}

}  // namespace flashsmith::sm90
