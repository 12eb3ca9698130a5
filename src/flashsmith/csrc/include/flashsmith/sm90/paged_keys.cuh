// Keys or values of a tile in a tensor of pages.
//
// A block of them comes in boxes, each of one page. To its copy a box is a sequence of its own
// (rows.cuh), with as many rows as the sequence has keys there: what else the page holds is not
// there, and zeros come in its place. A box that no row of the tile sees, and one whose page is
// none of the tensor's, has no rows at all: its copy reads nothing.
#pragma once

#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm90/rows.cuh"

namespace flashsmith::sm90 {

class PagedKeys {
  const PagesArgs &pages_;
  const int32_t *table_;   // of the sequence
  const int begin_, end_;  // of the keys that the tile may see
  const int head_;
  const int batch_rows_;  // from one page of the tensor to the next

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

  // The box that begins with this key. What the table has for boxes that are not seen is not looked
  // at: it need not even be that long.
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
