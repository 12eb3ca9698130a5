// The tensors a kernel may touch.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/launch.h"

namespace flashsmith::emulator {

class GlobalMemory {
 public:
  explicit GlobalMemory(const std::vector<MemoryRange> &ranges) : ranges_(ranges) {}

  enum class Use { load, store };

  // Throws a Problem unless a range allows `use` of [address, address + bytes), aligned to `bytes`
  // or to another power of two.
  void check(const void *address, unsigned bytes, Use use, unsigned lane) {
    check(address, bytes, bytes, use, lane);
  }
  void check(const void *address, size_t bytes, unsigned alignment, Use use, unsigned lane) {
    const bool aligned = (reinterpret_cast<uintptr_t>(address) & (alignment - 1)) == 0;
    const bool usable = last_ && holds(*last_, address, bytes) && aligned;
    if (!usable || (use == Use::store && !last_->writable)) {
      find(address, bytes, alignment, use, lane);
    }
  }

 private:
  static bool holds(const MemoryRange &range, const void *address, size_t bytes) {
    const uintptr_t offset =
        reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(range.base);
    return range.bytes >= bytes && offset <= range.bytes - bytes;
  }
  void find(const void *address, size_t bytes, unsigned alignment, Use use, unsigned lane);
  [[noreturn]] void refuse(const void *address, size_t bytes, unsigned lane) const;

  const std::vector<MemoryRange> &ranges_;
  const MemoryRange *last_ = nullptr;  // of the previous access
};

}  // namespace flashsmith::emulator
