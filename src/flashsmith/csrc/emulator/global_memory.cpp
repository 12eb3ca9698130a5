#include "emulator/global_memory.h"

#include <cstdio>

#include "emulator/shared_memory.h"

namespace flashsmith::emulator {

namespace {

std::string hexadecimal(const void *address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx",
                static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(address)));
  return text;
}

uintptr_t start(const MemoryRange &range) { return reinterpret_cast<uintptr_t>(range.base); }

}  // namespace

void GlobalMemory::find(const void *address, size_t bytes, unsigned alignment, Use use,
                        unsigned lane) {
  last_ = nullptr;
  for (const MemoryRange &range : ranges_) {
    // Ranges may overlap, as when an output is also an input.
    if (holds(range, address, bytes) && (!last_ || range.writable)) last_ = &range;
  }
  if (!last_) refuse(address, bytes, lane);
  const MemoryRange &range = *last_;
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) {
    throw Problem{lane, "global address " + hexadecimal(address) + " in " + range.name +
                            " is misaligned: must be a multiple of " + std::to_string(alignment)};
  }
  if (use == Use::store && !range.writable) {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - start(range);
    throw Problem{lane, "global address " + hexadecimal(address) + " is read-only: " + range.name +
                            ", byte " + std::to_string(offset)};
  }
}

void GlobalMemory::refuse(const void *address, size_t bytes, unsigned lane) const {
  std::string text = std::to_string(bytes) + " bytes at global address " + hexadecimal(address) +
                     " are out of bounds of every tensor";
  const MemoryRange *nearest = nullptr;  // the last one that starts at or below the address
  for (const MemoryRange &range : ranges_) {
    if (start(range) <= reinterpret_cast<uintptr_t>(address) &&
        (!nearest || start(range) > start(*nearest))) {
      nearest = &range;
    }
  }
  if (nearest) {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - start(*nearest);
    text += "; nearest below: " + nearest->name + ", byte " + std::to_string(offset) + " of " +
            std::to_string(nearest->bytes);
  }
  throw Problem{lane, text};
}

}  // namespace flashsmith::emulator
