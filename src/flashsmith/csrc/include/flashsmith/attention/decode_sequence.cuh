// The number of keys that a request has in a KV cache, and the place of each of them.
#pragma once

#include "flashsmith/attention/divisor.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/decode_params.h"

namespace flashsmith {

// A key's slot, or page, as the caller lists it, and the row there. DecodeSequence::has tells
// whether the cache has it.
struct CachePlace {
  int entry, row;
};

// Lengths, slots and pages come from the device, so they are clamped to the tensors: nothing else
// is ever touched.
class DecodeSequence {
  const DecodeProblem *problem_;
  int batch_, first_row_ = 0, length_;

 public:
  static constexpr bool kVarlen = true;

  // The problem is a DecodeProblem.
  FLASHSMITH_DEVICE DecodeSequence(const ProblemArgs &problem, int batch)
      : problem_(&static_cast<const DecodeProblem &>(problem)), batch_(batch) {
    const int32_t *seqused = problem_->varlen.seqused_k, *leftpad = problem_->cache.leftpad;
    const int rows = problem_->cache.rows;
    int end = rows;
    if (seqused != nullptr) {
      end = clamp(ptx::thread_load_global(seqused + batch), rows);
      end = clamp(end + problem_->cache.n_new, rows);
    }
    if (leftpad != nullptr) first_row_ = clamp(ptx::thread_load_global(leftpad + batch), end);
    length_ = end - first_row_;
  }

  FLASHSMITH_DEVICE int seq_len_q() const { return problem_->seq_len_q; }
  FLASHSMITH_DEVICE int seq_len_k() const { return length_; }
  FLASHSMITH_DEVICE int diagonal() const { return length_ - problem_->seq_len_q; }
  FLASHSMITH_DEVICE RowOffset queries() const { return {batch_, 0}; }
  FLASHSMITH_DEVICE RowOffset keys() const { return {batch_, first_row_}; }
  FLASHSMITH_DEVICE int rows_q() const { return problem_->seq_len_q; }

  // Returns the place of a key, which must exist. With a page table this loads from it, but does
  // not wait for the load.
  FLASHSMITH_DEVICE CachePlace place(int key) const { return place_of_row(first_row_ + key); }

  // Returns the place of a row, counted with the left padding.
  FLASHSMITH_DEVICE CachePlace place_of_row(int row) const {
    const CacheArgs &cache = problem_->cache;
    if (cache.block_table != nullptr) {
      const int page = quotient(row, cache.rows_per_entry);
      const int32_t *table = cache.block_table + batch_ * cache.block_table_stride;
      return {ptx::thread_load_global(table + page), row - page * cache.rows_per_entry.value};
    }
    const int entry =
        cache.batch_idx == nullptr ? batch_ : ptx::thread_load_global(cache.batch_idx + batch_);
    return {entry, row};
  }

  // Returns whether a place is in the cache.
  FLASHSMITH_DEVICE bool has(const CachePlace &place) const {
    return place.entry >= 0 && place.entry < problem_->cache.n_entries;
  }

 private:
  static FLASHSMITH_DEVICE int clamp(int value, int maximum) {
    return value < 0 ? 0 : value < maximum ? value : maximum;
  }
};
static_assert(SequencePolicy<DecodeSequence>);

// Returns the scale of an existing row of the request in a head of the cache; null: 1.
FLASHSMITH_DEVICE const float *scale_of_row(const Fp8Scale &of, const RowScales &rows, int batch,
                                            CachePlace place, int head) {
  if (of.scale == nullptr) return nullptr;
  const int64_t row = rows.of_rows ? place.entry * of.batch_stride + place.row * rows.row_stride
                                   : batch * of.batch_stride;
  return of.scale + row + head * of.head_stride;
}

}  // namespace flashsmith
