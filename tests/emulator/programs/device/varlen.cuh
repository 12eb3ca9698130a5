// Bulk copies of packed sequences (sm90/rows.cuh) against plain loops: rows beyond a sequence's end
// load as zeros, and are not written by stores.
#pragma once

#include "device/harness.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/sm90/rows.cuh"

namespace wrappers::varlen {

constexpr int kTile = 1024, kColumns = 64, kBoxRows = 16, kWords = kColumns * kBoxRows / 2;
constexpr int kHeads = 2, kTotal = 40;                     // of the tensor
constexpr int kHeadStride = 72, kRowStride = 2 * 72 + 16;  // in elements, with gaps
constexpr int kSize = kTotal * kRowStride;

struct Traits {
  using Sequence = VarlenSequence;
  static constexpr bool packed_heads = false;
};

// tile (words) = the box from `row` of the sequence on, in the layout of shared memory.
struct LoadRows {
  static constexpr int kThreads = 64;

  TensorMap map;
  sm90::Rows rows;
  int row;
  uint32_t *tile;

  FLASHSMITH_DEVICE void operator()() const {
    const shared_address barrier = shared_memory(), box = shared_memory() + kTile;
    if (thread_index() == 0) {
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(barrier, kWords * 4);
      sm90::load_rows<Traits>(box, map, barrier, 0, row, rows);
    }
    barrier_sync();
    mbarrier_wait_parity(barrier, 0);
    for (int i = thread_index(); i < kWords; i += kThreads) {
      thread_store_global_4(&tile[i], thread_load_shared_4(box + i * 4));
    }
  }
};

// The reverse of LoadRows; every word of the box is `word`.
struct StoreRows {
  static constexpr int kThreads = 64;

  TensorMap map;
  sm90::Rows rows;
  int row;
  uint32_t word;

  FLASHSMITH_DEVICE void operator()() const {
    const shared_address box = shared_memory() + kTile;
    for (int i = thread_index(); i < kWords; i += kThreads) {
      thread_store_shared_4(box + i * 4, word);
    }
    fence_proxy_async();
    barrier_sync();
    if (thread_index() != 32) return;
    sm90::store_rows<Traits>(map, box, 0, row, rows);
    tma_store_commit_group();
    tma_store_wait_group_read<0>();
  }
};

// Describes the tensor as csrc/host/tensor_map.cpp does.
inline TensorMap map_of(uint16_t *base) {
  constexpr int64_t kShift = kVarlenShift / sizeof(uint16_t) - kRowStride;
  return make_map(base,
                  {.sizes = {kColumns, kVarlenRows, kHeads, int64_t{1} << 31, kVarlenRows + 1},
                   .strides = {1, kRowStride, kHeadStride, kRowStride, kShift},
                   .box = {kColumns, kBoxRows, 1, 1, 1},
                   .swizzle = Swizzle::bytes_128});
}

inline Buffer<uint16_t> new_tensor() {
  Buffer<uint16_t> elements(kSize);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<uint16_t>(i * 7 + 1);
  return elements;
}

// Returns the index of a box element in the tensor, or -1 beyond the sequence.
inline int index_of(const sm90::Rows &rows, int row, int column) {
  if (row >= rows.length) return -1;
  const int of_tensor = rows.place.batch * rows.batch_rows + rows.place.row + row;
  return of_tensor * kRowStride + rows.head * kHeadStride + column;
}

// Returns the index in shared memory, where the row permutes chunks of 16 bytes.
inline int place_of(int row, int column) {
  return row * kColumns + (column / 8 ^ row % 8) * 8 + column % 8;
}

inline void check_load(Results &results, const sm90::Rows &rows, int first) {
  Buffer<uint16_t> elements = new_tensor();
  Buffer<uint32_t> tile(kWords);
  run(LoadRows{map_of(elements.data()), rows, first, tile.data()},
      {.shared_bytes = kTile + kWords * 4}, elements, tile);
  int wrong = 0;
  for (int i = 0; i < kBoxRows * kColumns; ++i) {
    const int row = i / kColumns, column = i % kColumns, place = place_of(row, column);
    const int index = index_of(rows, first + row, column);
    const uint32_t expected = index < 0 ? 0 : elements[static_cast<size_t>(index)];
    wrong += (tile[static_cast<size_t>(place / 2)] >> place % 2 * 16 & 0xFFFF) != expected;
  }
  results.check(wrong == 0, "load of row %d of %d from %d, head %d: %d elements are wrong", first,
                rows.length, rows.place.row, rows.head, wrong);
}

inline void check_store(Results &results, const sm90::Rows &rows, int first) {
  constexpr uint16_t kMark = 55555;
  Buffer<uint16_t> elements = new_tensor(), expected = elements;
  for (int i = 0; i < kBoxRows * kColumns; ++i) {
    const int index = index_of(rows, first + i / kColumns, i % kColumns);
    if (index >= 0) expected[static_cast<size_t>(index)] = kMark;
  }
  run(StoreRows{map_of(elements.data()), rows, first, kMark | uint32_t{kMark} << 16},
      {.shared_bytes = kTile + kWords * 4}, elements);
  int wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) wrong += elements[i] != expected[i];
  results.check(wrong == 0, "store of row %d of %d from %d, head %d: %d elements are wrong", first,
                rows.length, rows.place.row, rows.head, wrong);
}

inline void check(Results &results) {
  // The sequences are packed, one of them empty, or have a fixed number of rows for each batch
  // index.
  const sm90::Rows sequences[] = {
      {.place = {0, 0}, .length = 5, .head = 0, .batch_rows = 0},
      {.place = {0, 5}, .length = 0, .head = 1, .batch_rows = 0},
      {.place = {0, 5}, .length = 16, .head = 1, .batch_rows = 0},
      {.place = {0, 21}, .length = 19, .head = 0, .batch_rows = 0},
      {.place = {0, 0}, .length = 20, .head = 1, .batch_rows = 20},
      {.place = {1, 0}, .length = 17, .head = 0, .batch_rows = 20},
  };
  for (const sm90::Rows &rows : sequences) {
    for (int first : {0, 3, 16, 32}) {
      check_load(results, rows, first);
      check_store(results, rows, first);
    }
  }
}

}  // namespace wrappers::varlen
