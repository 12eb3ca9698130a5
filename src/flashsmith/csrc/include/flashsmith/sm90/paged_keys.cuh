// The keys or values of a tile in a tensor of pages:
//
//    key k is row k % page_rows of page block_table[batch][k / page_rows]
//
// A block of them is loaded in boxes, each within one page. To its copy a box is a separate
// sequence (rows.cuh), with the rows that the sequence has there: the rest of the page does not
// exist, and zeros replace it. A box that no row of the tile sees, or whose page is not in the
// tensor, has no rows at all: its copy reads nothing.
#pragma once

#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm90/rows.cuh"

namespace flashsmith::sm90 {

class PagedKeys {
  const PagesArgs &pages_;
  const int32_t *table_;   // the sequence's row of the page table
  const int begin_, end_;  // range of the keys that the tile may see
  const int head_;
  const int batch_rows_;  // rows from one page of the tensor to the next

 public:
  FLASHSMITH_DEVICE PagedKeys(const PagesArgs &pages, int batch, int begin, int end, int head,
                              int batch_rows)
      : pages_(pages),
        table_(pages.block_table + static_cast<uint32_t>(batch) * pages.block_table_stride),
        begin_(begin),
        end_(end),
        head_(head),
        batch_rows_(batch_rows) {}

  FLASHSMITH_DEVICE int box_rows() const { return pages_.box_rows; }

  // Returns the box that begins with this key. The page table is not read for boxes that are not
  // seen: it need not even be that long.
  FLASHSMITH_DEVICE Rows box(int key) const {
    const Rows none{{0, 0}, 0, head_, batch_rows_};
    if (key >= end_ || key + pages_.box_rows <= begin_) return none;
    const auto page_rows = static_cast<uint32_t>(pages_.page_rows);
    const int listed = static_cast<uint32_t>(key) / page_rows, row = key - listed * page_rows;
    const int page = ptx::thread_load_global(table_ + listed);
    if (page < 0 || page >= pages_.n_pages) return none;
    const int rest = end_ - key, length = rest < pages_.box_rows ? rest : pages_.box_rows;
    return {{page, row}, length, head_, batch_rows_};
  }
};

}  // namespace flashsmith::sm90
