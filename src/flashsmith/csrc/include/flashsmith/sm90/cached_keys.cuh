// The keys or values of a request in the slots or pages of a KV cache, in boxes for bulk copies
// (paged_keys.cuh).
#pragma once

#include "flashsmith/attention/decode_sequence.cuh"
#include "flashsmith/sm90/rows.cuh"

namespace flashsmith::sm90 {

class CachedKeys {
  const DecodeSequence &sequence_;
  const int box_rows_, head_, batch_rows_;

 public:
  FLASHSMITH_DEVICE CachedKeys(const DecodeSequence &sequence, int box_rows, int head,
                               int batch_rows)
      : sequence_(sequence), box_rows_(box_rows), head_(head), batch_rows_(batch_rows) {}

  FLASHSMITH_DEVICE int box_rows() const { return box_rows_; }

  // Returns the box that begins with this key. A box behind the request's keys, or in no slot of
  // the cache, has no rows: its copy reads nothing, and gives zeros.
  FLASHSMITH_DEVICE Rows box(int key) const {
    const int rest = sequence_.seq_len_k() - key;
    if (rest <= 0) return {{0, 0}, 0, head_, batch_rows_};
    const CachePlace place = sequence_.place(key);
    if (!sequence_.has(place)) return {{0, 0}, 0, head_, batch_rows_};
    return {{place.entry, place.row}, rest < box_rows_ ? rest : box_rows_, head_, batch_rows_};
  }
};

}  // namespace flashsmith::sm90
