// Bulk tensor copies: which bytes they move, and stores on their way.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "emulator/clocks.h"
#include "emulator/global_memory.h"
#include "emulator/tensor_map.h"

namespace flashsmith::emulator {

class Block;
struct BulkLoad;
struct Thread;

constexpr unsigned kBulkAlignment = 128;  // of the tile in shared memory

uint32_t box_bytes(const TensorMap &map);

// Throws a Problem unless the map is one that cuTensorMapEncodeTiled takes and all elements of the
// box that lie in the tensor may be used.
void check_box(GlobalMemory &memory, const TensorMap &map, const int *coordinates,
               GlobalMemory::Use use, unsigned lane);

// Writes the copy's bytes to shared memory.
void land(Block &block, const BulkLoad &load, unsigned component, uint32_t epoch);

// Stores are read at the first wait of their thread that covers them, and written at the first that
// waits for that, or at the block's end.
class BulkStores {
 public:
  explicit BulkStores(Block &block) : block_(block) {}

  void start_block() { threads_.clear(); }
  void store(Thread &thread, const TensorMap &map, const void *shared, const int *coordinates);
  void commit(unsigned thread) { ++threads_[thread].groups; }
  void wait(Thread &thread, unsigned pending, bool read_only);
  bool unread(const Thread &thread) const;
  void finish();

 private:
  struct Store {
    TensorMap map;
    int coordinates[kMaxTensorRank];
    uint32_t offset;  // in shared memory
    uint64_t group;
    Clocks::Published ordered;     // what the store is ordered after
    std::vector<uint8_t> bytes{};  // once read
  };
  struct Stores {
    uint64_t groups = 0;  // committed so far
    std::vector<Store> stores;
  };

  void read(Thread &thread, Store &store, uint32_t epoch);
  static void write(const Store &store);

  Block &block_;
  std::map<unsigned, Stores> threads_;
};

}  // namespace flashsmith::emulator
