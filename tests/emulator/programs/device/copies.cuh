// Bulk tensor copies against plain loops: ranks, swizzles, boxes that extend beyond the tensor.
#pragma once

#include <algorithm>

#include "device/harness.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/tma.cuh"

namespace wrappers::copies {

constexpr int kCopyThreads = 64, kTile = 1024, kTileBytes = 32 << 10, kMaxDimensions = 5;

struct Corner {
  int rank, coordinates[kMaxDimensions];
};

template <class Copy>
FLASHSMITH_DEVICE void with_coordinates(const Corner &corner, Copy copy) {
  const auto &c = corner.coordinates;
  if (corner.rank == 2) {
    copy(c[0], c[1]);
  } else if (corner.rank == 3) {
    copy(c[0], c[1], c[2]);
  } else if (corner.rank == 4) {
    copy(c[0], c[1], c[2], c[3]);
  } else {
    copy(c[0], c[1], c[2], c[3], c[4]);
  }
}

// tile (words) = the box, in the layout of shared memory.
template <CacheHint kHint>
struct LoadBox {
  static constexpr int kThreads = kCopyThreads;

  TensorMap map;
  Corner corner;
  uint32_t *tile;
  int words;

  FLASHSMITH_DEVICE void operator()() const {
    const shared_address barrier = shared_memory(), box = shared_memory() + kTile;
    if (thread_index() == 0) {
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(barrier, words * 4);
      with_coordinates(corner, [&](auto... c) { tma_load<kHint>(box, map, barrier, c...); });
    }
    barrier_sync();
    mbarrier_wait_parity(barrier, 0);
    for (int i = thread_index(); i < words; i += kThreads) {
      thread_store_global_4(&tile[i], thread_load_shared_4(box + i * 4));
    }
  }
};

// The reverse of LoadBox.
struct StoreBox {
  static constexpr int kThreads = kCopyThreads;

  TensorMap map;
  Corner corner;
  const uint32_t *tile;
  int words;

  FLASHSMITH_DEVICE void operator()() const {
    const shared_address box = shared_memory() + kTile;
    for (int i = thread_index(); i < words; i += kThreads) {
      thread_store_shared_4(box + i * 4, tile[i]);
    }
    fence_proxy_async();
    barrier_sync();
    if (thread_index() != 32) return;
    with_coordinates(corner, [&](auto... c) { tma_store(map, box, c...); });
    tma_store_commit_group();
    tma_store_wait_group_read<0>();
  }
};

// A tensor with padded rows, and the expected result of a copy of a box.
struct Tensor {
  TensorShape shape;
  Buffer<uint16_t> elements;

  Tensor(const std::vector<int> &sizes, const std::vector<int> &box, Swizzle swizzle)
      : shape{{sizes.begin(), sizes.end()}, {}, box, swizzle} {
    constexpr int kPadding = 8, kAlignment = 8;  // elements: 16 bytes
    int stride = 1;
    for (size_t i = 0; i < sizes.size(); ++i) {
      shape.strides.push_back(stride);
      stride =
          (stride * sizes[i] + (i == 0 ? kPadding : 0) + kAlignment - 1) / kAlignment * kAlignment;
    }
    for (int i = 0; i < stride; ++i) elements.push_back(static_cast<uint16_t>(i * 7 + 1));
  }

  // Returns the index of element `i` of the box at `corner`, or -1 outside of the tensor.
  int64_t index_of(const std::vector<int> &corner, int i) const {
    int64_t index = 0;
    for (size_t d = 0; d < corner.size(); i /= shape.box[d], ++d) {
      const int position = corner[d] + i % shape.box[d];
      if (position < 0 || position >= shape.sizes[d]) return -1;
      index += position * shape.strides[d];
    }
    return index;
  }
  int box_size() const {
    int size = 1;
    for (int extent : shape.box) size *= extent;
    return size;
  }
  // Returns the index of box element i in shared memory: lines are as long as the swizzle, and the
  // line permutes their 16-byte chunks.
  int place(int i) const {
    if (shape.swizzle == Swizzle::none) return i;
    const int width = shape.box[0], line = i / width, column = i % width;
    const int chunks = width / 8, shift = 8 / chunks;
    return line * width + (column / 8 ^ (line / shift % chunks)) * 8 + column % 8;
  }
};

inline Corner corner_of(const std::vector<int> &coordinates) {
  Corner corner{static_cast<int>(coordinates.size()), {}};
  for (size_t i = 0; i < coordinates.size(); ++i) corner.coordinates[i] = coordinates[i];
  return corner;
}

inline std::string describe(const Tensor &tensor, const std::vector<int> &corner) {
  std::string text = "swizzle " + std::to_string(static_cast<int>(tensor.shape.swizzle)) + ", box";
  for (int extent : tensor.shape.box) text += " " + std::to_string(extent);
  text += " at";
  for (int position : corner) text += " " + std::to_string(position);
  return text;
}

template <CacheHint kHint = CacheHint::none>
void check_load(Results &results, Tensor tensor, const std::vector<int> &corner) {
  const int count = tensor.box_size();
  Buffer<uint32_t> tile(static_cast<size_t>(count) / 2);
  run(LoadBox<kHint>{make_map(tensor.elements.data(), tensor.shape), corner_of(corner), tile.data(),
                     count / 2},
      {.shared_bytes = kTile + kTileBytes}, tensor.elements, tile);
  int wrong = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t index = tensor.index_of(corner, i);
    const int place = tensor.place(i);
    const uint32_t expected = index < 0 ? 0 : tensor.elements[static_cast<size_t>(index)];
    wrong += (tile[static_cast<size_t>(place / 2)] >> place % 2 * 16 & 0xFFFF) != expected;
  }
  results.check(wrong == 0, "load, %s: %d elements of %d are wrong",
                describe(tensor, corner).c_str(), wrong, count);
}

inline void check_store(Results &results, Tensor tensor, const std::vector<int> &corner) {
  const int count = tensor.box_size();
  Buffer<uint32_t> tile(static_cast<size_t>(count) / 2);
  std::vector<uint16_t> expected(tensor.elements.begin(), tensor.elements.end());
  for (int i = 0; i < count; ++i) {
    const auto element = static_cast<uint16_t>(50000 + i);
    const int64_t index = tensor.index_of(corner, i);
    const int place = tensor.place(i);
    tile[static_cast<size_t>(place / 2)] |= uint32_t{element} << place % 2 * 16;
    if (index >= 0) expected[static_cast<size_t>(index)] = element;
  }
  run(StoreBox{make_map(tensor.elements.data(), tensor.shape), corner_of(corner), tile.data(),
               count / 2},
      {.shared_bytes = kTile + kTileBytes}, tensor.elements, tile);
  int wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) wrong += tensor.elements[i] != expected[i];
  results.check(wrong == 0, "store, %s: %d elements of the tensor are wrong",
                describe(tensor, corner).c_str(), wrong);
}

inline void check(Results &results) {
  const auto check = [&](const std::vector<int> &sizes, const std::vector<int> &box,
                         Swizzle swizzle, const std::vector<std::vector<int>> &corners) {
    for (const std::vector<int> &corner : corners) {
      check_load(results, Tensor(sizes, box, swizzle), corner);
      // A store must not begin before the tensor.
      if (std::ranges::min(corner) >= 0) check_store(results, Tensor(sizes, box, swizzle), corner);
    }
  };
  const std::vector<std::vector<int>> corners = {{0, 0}, {16, 3}, {-8, -2}, {96, 40}, {200, 0}};
  check({104, 50}, {16, 20}, Swizzle::bytes_32, corners);
  check({104, 50}, {32, 20}, Swizzle::bytes_64, corners);
  check({104, 50}, {64, 20}, Swizzle::bytes_128, corners);
  check({104, 50}, {72, 33}, Swizzle::none, corners);
  check({64, 7, 30}, {64, 2, 13}, Swizzle::bytes_128, {{0, 0, 0}, {0, 6, 20}, {32, -1, -5}});
  check({72, 3, 10, 2}, {64, 1, 6, 1}, Swizzle::bytes_128, {{0, 2, 0, 1}, {64, 1, 7, 0}});
  check({72, 3, 10, 2}, {32, 2, 6, 2}, Swizzle::bytes_64, {{0, 2, 0, 1}, {64, 1, 7, 0}});
  check({72, 3, 4, 2, 3}, {32, 2, 3, 2, 1}, Swizzle::bytes_64, {{0, 2, 0, 1, 2}, {64, 1, 3, 0, 0}});
  const std::vector<std::vector<int>> sizes = {
      {80, 9}, {80, 9, 2}, {80, 9, 2, 3}, {80, 9, 2, 3, 2}};
  const std::vector<std::vector<int>> boxes = {
      {64, 8}, {64, 8, 1}, {64, 8, 1, 1}, {64, 8, 1, 1, 1}};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Tensor tensor(sizes[i], boxes[i], Swizzle::bytes_128);
    std::vector<int> corner(sizes[i].size(), 1);
    corner[0] = 8;
    check_load<CacheHint::evict_first>(results, tensor, corner);
    check_load<CacheHint::evict_last>(results, tensor, corner);
  }
}

}  // namespace wrappers::copies
