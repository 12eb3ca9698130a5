#include "emulator/tma.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "emulator/block.h"

namespace flashsmith::emulator {

namespace {

constexpr uint32_t kChunkBytes = 16, kMaxBox = 256, kMaxRowBytes = kMaxBox * 8;

uint32_t row_bytes(const TensorMap &map) { return map.box[0] * map.element_bytes; }

// A row of the box: `bytes` bytes from `first` on are in the tensor, at `address`.
struct Row {
  uint32_t index;
  uint8_t *address;
  uint32_t first, bytes;
};

template <class Visit>
void each_row(const TensorMap &map, const int *coordinates, Visit visit) {
  const int64_t x = coordinates[0];
  const int64_t first = std::max<int64_t>(0, -x);
  const int64_t last = std::min<int64_t>(map.box[0], static_cast<int64_t>(map.sizes[0]) - x);
  const uint32_t rows = box_bytes(map) / row_bytes(map);
  for (uint32_t row = 0; row < rows; ++row) {
    bool inside = first < last;
    // Addresses wrap around, as on the hardware.
    uint64_t address = reinterpret_cast<uintptr_t>(map.base) +
                       static_cast<uint64_t>((x + first) * map.element_bytes);
    uint32_t rest = row;
    for (unsigned i = 1; i < map.rank; rest /= map.box[i], ++i) {
      const int64_t position = int64_t{coordinates[i]} + rest % map.box[i];
      inside &= position >= 0 && position < static_cast<int64_t>(map.sizes[i]);
      address += static_cast<uint64_t>(position) * map.strides[i];
    }
    const auto bytes = static_cast<uint32_t>(inside ? (last - first) * map.element_bytes : 0);
    visit(Row{row, inside ? reinterpret_cast<uint8_t *>(address) : nullptr,
              static_cast<uint32_t>(inside ? first * map.element_bytes : 0), bytes});
  }
}

// Calls `move` for the chunks of a row of a box, with the swizzled shared-memory offset and the
// offset in the row. The tile begins at shared-memory offset `offset`.
template <class Move>
void each_chunk(const TensorMap &map, uint32_t offset, uint32_t row, Move move) {
  const uint32_t bytes = row_bytes(map);
  for (uint32_t chunk = 0; chunk < bytes; chunk += kChunkBytes) {
    move(swizzled(offset + row * bytes + chunk, map.swizzle), chunk);
  }
}

void check_map(const TensorMap &map, unsigned lane) {
  const auto refuse = [&](const char *what) {
    throw Problem{lane, std::string("the tensor map ") + what};
  };
  if (map.rank < 1 || map.rank > kMaxTensorRank) refuse("has a rank that is not 1 to 5");
  if (reinterpret_cast<uintptr_t>(map.base) % kChunkBytes != 0) {
    refuse("has a base that is no multiple of 16");
  }
  for (unsigned i = 0; i < map.rank; ++i) {
    if (map.box[i] < 1 || map.box[i] > kMaxBox) refuse("has a box size that is not 1 to 256");
    if (i > 0 && map.strides[i] % kChunkBytes != 0) {
      refuse("has a stride that is no multiple of 16 bytes");
    }
  }
  if (row_bytes(map) % kChunkBytes != 0) refuse("has box rows that are no multiple of 16 bytes");
  if (map.sizes[0] * map.element_bytes % kChunkBytes != 0) {
    refuse("has rows that are no multiple of 16 bytes: an H200 does not store what is left over");
  }
  const uint32_t span = kChunkBytes << static_cast<unsigned>(map.swizzle);
  if (map.swizzle != Swizzle::none && row_bytes(map) != span) {
    refuse("has box rows that are not as long as its swizzle");
  }
}

void land_box(uint8_t *shared, const BulkLoad &load) {
  const TensorMap &map = load.map;
  each_row(map, load.coordinates, [&](const Row &row) {
    uint8_t line[kMaxRowBytes];
    std::memset(line, 0, row_bytes(map));
    if (row.bytes > 0) std::memcpy(line + row.first, row.address, row.bytes);
    each_chunk(map, load.offset, row.index, [&](uint32_t offset, uint32_t chunk) {
      std::memcpy(shared + offset, line + chunk, kChunkBytes);
    });
  });
}

// Adds atomically, because other blocks, on other host threads, add to the same numbers.
void add_floats(void *row, const std::vector<uint8_t> &bytes) {
  auto *sums = static_cast<float *>(row);
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    float value;
    std::memcpy(&value, &bytes[i * sizeof(float)], sizeof value);
    std::atomic_ref(sums[i]).fetch_add(value, std::memory_order_relaxed);
  }
}

}  // namespace

uint32_t box_bytes(const TensorMap &map) {
  uint32_t bytes = map.element_bytes;
  for (unsigned i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

void check_box(GlobalMemory &memory, const TensorMap &map, const int *coordinates,
               GlobalMemory::Use use, unsigned lane) {
  check_map(map, lane);
  if (coordinates[0] * static_cast<int64_t>(map.element_bytes) % kChunkBytes != 0) {
    throw Problem{lane,
                  "the box begins at column " + std::to_string(coordinates[0]) +
                      ", which is no multiple of 16 bytes: an illegal instruction on an H200"};
  }
  if (use == GlobalMemory::Use::store &&
      std::any_of(coordinates, coordinates + map.rank, [](int x) { return x < 0; })) {
    throw Problem{lane, "the box begins before the tensor: an illegal instruction on an H200"};
  }
  each_row(map, coordinates, [&](const Row &row) {
    if (row.bytes > 0) memory.check(row.address, row.bytes, map.element_bytes, use, lane);
  });
}

void check_row(GlobalMemory &memory, const void *row, int bytes, GlobalMemory::Use use,
               unsigned lane) {
  if (bytes <= 0 || bytes % static_cast<int>(kBulkRowAlignment) != 0) {
    throw Problem{lane, std::to_string(bytes) + " bytes: must be a positive multiple of 16"};
  }
  memory.check(row, static_cast<size_t>(bytes), kBulkRowAlignment, use, lane);
}

uint64_t follow(Block &block, Thread &thread, const void *row, size_t bytes, GlobalOrder::Use use) {
  std::string conflict;
  const uint64_t copy = block.cluster.order.begin(thread.in_grid(), row, bytes, use, conflict);
  if (!conflict.empty()) throw Problem{thread.lane, conflict};
  return copy;
}

void land(Block &block, const BulkLoad &load, unsigned component, uint32_t epoch) {
  uint8_t *shared = block.shared.data();
  if (load.row) {
    std::memcpy(shared + load.offset, load.row, load.bytes);
  } else {
    land_box(shared, load);
  }
  block.shared.land_copy({.component = component,
                          .epoch = epoch,
                          .ordered = nullptr,
                          .instruction = load.instruction(),
                          .warp = load.issuer->warp->index,
                          .lane = load.issuer->lane},
                         load.offset, load.bytes);
}

void BulkStores::store(Thread &thread, const TensorMap &map, const void *shared,
                       const int *coordinates) {
  if (std::any_of(coordinates, coordinates + map.rank, [](int x) { return x < 0; })) {
    throw Problem{thread.lane, "the box begins before the tensor: an H200 refuses such a store"};
  }
  const uint32_t bytes = box_bytes(map);
  const uint32_t offset = block_.shared.offset(shared, bytes, kBulkAlignment, thread.lane);
  check_box(block_.global, map, coordinates, GlobalMemory::Use::store, thread.lane);
  Store store{.map = map, .offset = offset, .size = bytes};
  std::copy_n(coordinates, map.rank, store.coordinates);
  issue(thread, store);
}

void BulkStores::row(Thread &thread, GlobalOrder::Use use, void *global, const void *shared,
                     int bytes) {
  check_row(block_.global, global, bytes, GlobalMemory::Use::store, thread.lane);
  const auto size = static_cast<uint32_t>(bytes);
  const uint32_t offset =
      block_.shared.offset(shared, size_t{size}, kBulkRowAlignment, thread.lane);
  const bool adds = use == GlobalOrder::Use::add;
  issue(thread, {.instruction = adds ? Instruction::bulk_add : Instruction::bulk_store,
                 .row = global,
                 .copy = follow(block_, thread, global, size, use),
                 .offset = offset,
                 .size = size});
}

void BulkStores::issue(Thread &thread, Store store) {
  Stores &mine = threads_[thread.index];
  store.group = mine.groups;
  block_.clocks.merge(store.ordered, block_.clocks.seen(thread.warp->index, thread.lane));
  ++block_.counters.tma_stores;
  block_.counters.tma_store_bytes += store.size;
  mine.stores.push_back(std::move(store));
}

void BulkStores::wait(Thread &thread, unsigned pending, bool read_only) {
  Stores &mine = threads_[thread.index];
  const uint64_t covered = mine.groups - std::min<uint64_t>(mine.groups, pending);
  const unsigned warp = thread.warp->index, component = block_.clocks.store(warp);
  const uint32_t epoch = block_.clocks.next(component);
  for (Store &store : mine.stores) {
    if (store.group >= covered) break;
    if (store.bytes.empty()) read(thread, store, epoch);
    if (read_only) continue;
    write(store);
    if (store.row) block_.cluster.order.complete(thread.in_grid(), store.copy);
  }
  block_.clocks.acquire(warp, thread.lane, component, epoch);
  if (!read_only) {
    std::erase_if(mine.stores, [&](const Store &store) { return store.group < covered; });
  }
}

void BulkStores::read(Thread &thread, Store &store, uint32_t epoch) {
  block_.shared.read({.component = block_.clocks.store(thread.warp->index),
                      .epoch = epoch,
                      .ordered = store.ordered.data(),
                      .instruction = store.instruction,
                      .warp = thread.warp->index,
                      .lane = thread.lane},
                     store.offset, store.size);
  const uint8_t *tile = block_.shared.data() + store.offset;
  store.bytes.assign(tile, tile + store.size);
}

void BulkStores::write(const Store &store) {
  if (store.instruction == Instruction::bulk_add) return add_floats(store.row, store.bytes);
  if (store.instruction == Instruction::bulk_store) {
    std::memcpy(store.row, store.bytes.data(), store.bytes.size());
    return;
  }
  const TensorMap &map = store.map;
  each_row(map, store.coordinates, [&](const Row &row) {
    if (row.bytes == 0) return;
    uint8_t line[kMaxRowBytes];
    each_chunk(map, store.offset, row.index, [&](uint32_t offset, uint32_t chunk) {
      std::memcpy(line + chunk, &store.bytes[offset - store.offset], kChunkBytes);
    });
    std::memcpy(row.address, line + row.first, row.bytes);
  });
}

Instruction BulkStores::unread(const Thread &thread) const {
  const auto found = threads_.find(thread.index);
  if (found == threads_.end()) return Instruction::none;
  for (const Store &store : found->second.stores) {
    if (store.bytes.empty()) return store.instruction;
  }
  return Instruction::none;
}

void BulkStores::finish() {
  for (const auto &[index, mine] : threads_) {
    for (const Store &store : mine.stores) write(store);
  }
}

}  // namespace flashsmith::emulator
