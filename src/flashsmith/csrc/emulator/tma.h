// Bulk copies: the bytes that they move, and stores in flight.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "emulator/clocks.h"
#include "emulator/global_memory.h"
#include "emulator/global_order.h"
#include "emulator/instruction.h"
#include "emulator/tensor_map.h"

namespace flashsmith::emulator {

class Block;
struct BulkLoad;
struct Thread;

constexpr unsigned kBulkAlignment = 128;    // of a tile in shared memory
constexpr unsigned kBulkRowAlignment = 16;  // of contiguous bytes, at both ends

uint32_t box_bytes(const TensorMap &map);

// Throws a Problem unless cuTensorMapEncodeTiled takes the map and all elements of the box that lie
// in the tensor may be used.
void check_box(GlobalMemory &memory, const TensorMap &map, const int *coordinates,
               GlobalMemory::Use use, unsigned lane);

// Writes the copy's bytes to shared memory.
void land(Block &block, const BulkLoad &load, unsigned component, uint32_t epoch);

// Throws a Problem unless this many contiguous bytes may be used.
void check_row(GlobalMemory &memory, const void *row, int bytes, GlobalMemory::Use use,
               unsigned lane);

// Begins a copy of contiguous bytes, and returns its number among the thread's copies. Throws a
// Problem unless it is ordered after all conflicting copies.
uint64_t follow(Block &block, Thread &thread, const void *row, size_t bytes, GlobalOrder::Use use);

// The bulk stores of a block. Stores are read at the first wait of their thread that covers their
// reads, and written, or added, at the first wait that covers their writes, or at the block's end.
class BulkStores {
 public:
  explicit BulkStores(Block &block) : block_(block) {}

  void start_block() { threads_.clear(); }
  void store(Thread &thread, const TensorMap &map, const void *shared, const int *coordinates);
  // Stores or adds contiguous bytes.
  void row(Thread &thread, GlobalOrder::Use use, void *global, const void *shared, int bytes);
  void commit(unsigned thread) { ++threads_[thread].groups; }
  void wait(Thread &thread, unsigned pending, bool read_only);
  Instruction unread(const Thread &thread) const;  // none: all have been read
  void finish();

 private:
  struct Store {
    TensorMap map{};
    int coordinates[kMaxTensorRank] = {};
    Instruction instruction = Instruction::tma_store;
    void *row = nullptr;  // destination, if it is not a box
    uint64_t copy = 0;    // its number among the thread's copies in global memory
    uint32_t offset = 0;  // in shared memory
    uint32_t size = 0;    // in bytes
    uint64_t group = 0;
    Clocks::Published ordered{};   // the epochs that the store is ordered after
    std::vector<uint8_t> bytes{};  // once they have been read
  };
  struct Stores {
    uint64_t groups = 0;  // committed so far
    std::vector<Store> stores;
  };

  void issue(Thread &thread, Store store);
  void read(Thread &thread, Store &store, uint32_t epoch);
  static void write(const Store &store);

  Block &block_;
  std::map<unsigned, Stores> threads_;
};

}  // namespace flashsmith::emulator
