// Bulk tensor copies against plain loops: ranks, swizzles, boxes that stick out of the tensor.
#include "cases.h"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/tma.cuh"

namespace cases {

namespace {

using namespace flashsmith::ptx;
using flashsmith::ptx::shared_memory, flashsmith::ptx::thread_index;  // not the emulator's

constexpr int kBarrier = 0, kTile = 1024, kTileBytes = 32 << 10;
constexpr int kThreads = 64;

// A tensor of 16-bit elements whose rows are padded, and what a copy should make of a box of it.
struct Tensor {
  std::vector<int> sizes, box;
  std::vector<uint16_t> elements;
  TensorMap map{};

  Tensor(std::vector<int> sizes, std::vector<int> box, Swizzle swizzle) : sizes(sizes), box(box) {
    constexpr int kPadding = 8;
    map.element_bytes = 2;
    map.rank = static_cast<uint32_t>(sizes.size());
    map.swizzle = swizzle;
    size_t stride = 1;
    for (size_t i = 0; i < sizes.size(); ++i) {
      map.sizes[i] = static_cast<uint64_t>(sizes[i]);
      map.box[i] = static_cast<uint32_t>(box[i]);
      map.strides[i] = stride * 2;
      stride = (stride * sizes[i] + (i == 0 ? kPadding : 0) + 7) / 8 * 8;
    }
    for (size_t i = 0; i < stride; ++i) elements.push_back(static_cast<uint16_t>(i * 7 + 1));
    // The start of a vector is 16-byte aligned.
    map.base = elements.data();
  }

  // The element at `corner` plus the position of box element `i`, or nullptr outside.
  uint16_t *at(const std::vector<int> &corner, int i) {
    size_t bytes = 0;
    for (size_t d = 0; d < sizes.size(); i /= box[d], ++d) {
      const int position = corner[d] + i % box[d];
      if (position < 0 || position >= sizes[d]) return nullptr;
      bytes += static_cast<size_t>(position) * map.strides[d];
    }
    return &elements[bytes / 2];
  }
  int box_size() const {
    int size = 1;
    for (int extent : box) size *= extent;
    return size;
  }
};

// The byte of box element i in shared memory: lines as long as the swizzle, whose 16-byte chunks
// are permuted by the line.
int place(const Tensor &tensor, int i) {
  const int width = tensor.box[0] * 2, line = i / tensor.box[0], byte = i % tensor.box[0] * 2;
  if (tensor.map.swizzle == Swizzle::none) return line * width + byte;
  const int chunks = width / 16, shift = 8 / chunks;
  return line * width + (byte / 16 ^ (line / shift % chunks)) * 16 + byte % 16;
}

template <class Body>
void run(Tensor &tensor, Body body) {
  launch({.kernel = "copy",
          .grid = {},
          .threads = kThreads,
          .shared_memory_bytes = kTile + kTileBytes,
          .memory = {{tensor.elements.data(), tensor.elements.size() * 2, "tensor", true}},
          .body = body},
         {.seed = 3, .workers = 1});
}

template <class Copy>
void with_coordinates(const std::vector<int> &c, Copy copy) {
  if (c.size() == 2) return copy(c[0], c[1]);
  if (c.size() == 3) return copy(c[0], c[1], c[2]);
  copy(c[0], c[1], c[2], c[3]);
}

int tested = 0;

void check_load(Tensor tensor, const std::vector<int> &corner) {
  tensor.map.base = tensor.elements.data();
  const int count = tensor.box_size();
  std::vector<uint16_t> tile(static_cast<size_t>(count));
  run(tensor, [&] {
    const shared_address barrier = shared_memory() + kBarrier;
    if (thread_index() == 0) {
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(barrier, count * 2);
      with_coordinates(
          corner, [&](auto... c) { tma_load(shared_memory() + kTile, tensor.map, barrier, c...); });
    }
    barrier_sync();
    mbarrier_wait_parity(barrier, 0);
    for (int i = thread_index() * 2; i < count; i += kThreads * 2) {
      const uint32_t pair = thread_load_shared_4(shared_memory() + kTile + place(tensor, i));
      std::memcpy(&tile[static_cast<size_t>(i)], &pair, sizeof pair);
    }
  });
  for (int i = 0; i < count; ++i) {
    const uint16_t *element = tensor.at(corner, i);
    const uint16_t expected = element ? *element : 0;
    if (tile[static_cast<size_t>(i)] != expected) {
      fail("load %d: element %d is %u, not %u", tested, i, tile[static_cast<size_t>(i)], expected);
    }
  }
  ++tested;
}

void check_store(Tensor tensor, const std::vector<int> &corner) {
  tensor.map.base = tensor.elements.data();
  const int count = tensor.box_size();
  std::vector<uint16_t> tile;
  for (int i = 0; i < count; ++i) tile.push_back(static_cast<uint16_t>(50000 + i));
  Tensor expected = tensor;
  for (int i = 0; i < count; ++i) {
    if (uint16_t *element = expected.at(corner, i)) *element = tile[static_cast<size_t>(i)];
  }
  run(tensor, [&] {
    for (int i = thread_index() * 2; i < count; i += kThreads * 2) {
      uint32_t pair;
      std::memcpy(&pair, &tile[static_cast<size_t>(i)], sizeof pair);
      thread_store_shared_4(shared_memory() + kTile + place(tensor, i), pair);
    }
    fence_proxy_async();
    barrier_sync();
    if (thread_index() == 32) {
      with_coordinates(corner,
                       [&](auto... c) { tma_store(tensor.map, shared_memory() + kTile, c...); });
      tma_store_commit_group();
      tma_store_wait_group_read<0>();
    }
  });
  if (tensor.elements != expected.elements) fail("store %d differs", tested);
  ++tested;
}

void check(const std::vector<int> &sizes, const std::vector<int> &box, Swizzle swizzle,
           const std::vector<std::vector<int>> &corners) {
  for (const std::vector<int> &corner : corners) {
    check_load(Tensor(sizes, box, swizzle), corner);
    check_store(Tensor(sizes, box, swizzle), corner);
  }
}

}  // namespace

void hopper_copies() {
  const std::vector<std::vector<int>> corners = {{0, 0}, {16, 3}, {-8, -2}, {96, 40}, {200, 0}};
  check({100, 50}, {16, 20}, Swizzle::bytes_32, corners);
  check({100, 50}, {32, 20}, Swizzle::bytes_64, corners);
  check({100, 50}, {64, 20}, Swizzle::bytes_128, corners);
  check({100, 50}, {72, 33}, Swizzle::none, corners);
  check({64, 7, 30}, {64, 2, 13}, Swizzle::bytes_128, {{0, 0, 0}, {0, 6, 20}, {32, -1, -5}});
  check({72, 3, 10, 2}, {64, 1, 6, 1}, Swizzle::bytes_128, {{0, 2, 0, 1}, {64, 1, 7, 0}});
  check({72, 3, 10, 2}, {32, 2, 6, 2}, Swizzle::bytes_64, {{0, 2, 0, 1}, {64, 1, 7, 0}});
  std::printf("{\"tested\": %d}\n", tested);
}

}  // namespace cases
