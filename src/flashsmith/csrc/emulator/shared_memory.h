// A block's shared memory with a shadow that remembers who wrote and read each 4-byte word, and the
// clocks that say which of those accesses are ordered (happens-before, as in FastTrack).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/instruction.h"

namespace flashsmith::emulator {

// Thrown while an instruction executes; becomes a Fault that also names kernel, block and thread.
struct Problem {
  unsigned lane;
  std::string text;
  Instruction instruction = Instruction::none;  // none: the one that the warp is at
};

// Each warp counts epochs; one ends when the warp synchronises. An access is known by its epoch.
// What warp w does now is ordered after all that warp u did up to epoch seen(w)[u]; of its own
// accesses these are the ones of past epochs, so that lanes are ordered when their epochs differ.
class Clocks {
 public:
  explicit Clocks(unsigned warps) : warps_(warps), seen_(size_t{warps} * warps) {}

  static constexpr uint32_t kMaxEpoch = (1u << 24) - 1;  // fits the shadow of a read
  static constexpr uint32_t kRestart = 1u << 20;         // leaves a block enough of them

  void start_block();
  bool restarted() const { return restarted_; }  // this block's epochs began at 1 again
  unsigned warps() const { return warps_; }
  const uint32_t *seen(unsigned warp) const { return &seen_[size_t{warp} * warps_]; }
  uint32_t now(unsigned warp) const { return seen(warp)[warp] + 1; }

  // A clock that travels with a synchronisation object: what arrivals publish and waiters learn.
  using Published = std::vector<uint32_t>;
  void end_epoch(unsigned warp);
  void release(unsigned warp, Published &published);  // also ends the epoch
  void acquire(unsigned warp, const Published &published);

 private:
  unsigned warps_;
  std::vector<uint32_t> seen_;  // [warp][of]
  bool restarted_ = true;
};

using Offsets = uint32_t[32];  // in shared memory, of the lanes

// One instruction of one warp.
struct Access {
  unsigned warp;
  Instruction instruction;
  bool whole_warp = false;  // a lane gives the address, but all lanes get of the data
};

class SharedMemory {
 public:
  SharedMemory(size_t bytes, const Clocks &clocks);

  void start_block();  // poisons everything; call after Clocks::start_block
  uint8_t *data() const { return data_; }

  // The offset of [address, address + bytes), after checks of bounds and alignment.
  uint32_t offset(const void *address, unsigned bytes, unsigned lane) const {
    const uintptr_t offset =
        reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(data_);
    const bool inside = bytes <= bytes_ && offset <= bytes_ - bytes;
    if (!inside || (offset & (bytes - 1)) != 0) [[unlikely]]
      refuse(offset, bytes, lane);
    return static_cast<uint32_t>(offset);
  }

  // Each checks that `bytes` at each offset are ordered after accesses they conflict with, and
  // remembers them.
  void read(const Access &access, const Offsets &offsets, unsigned bytes);
  void write(const Access &access, const Offsets &offsets, unsigned bytes);
  void begin_copy(const Access &access, const Offsets &offsets, unsigned bytes);  // poisons

  // What begin_copy has announced for a lane.
  void land_copy(const Access &access, unsigned lane, uint32_t offset, const void *source,
                 unsigned bytes);

 private:
  enum class State : uint8_t { uninitialised, in_flight, written };
  struct Write {
    uint32_t epoch;  // kNever unless written: then no access is ordered after it
    uint8_t warp, lane;
    Instruction instruction;
    State state;

    bool operator==(const Write &) const = default;
  };
  static constexpr uint32_t kNever = ~0u;
  static constexpr unsigned kWordBytes = 4, kWordsPerChunk = 4;

  uint32_t *reads_of(size_t word, unsigned warp) {
    const size_t chunk = word / kWordsPerChunk;
    return &reads_[(chunk * clocks_.warps() + warp) * kWordsPerChunk + word % kWordsPerChunk];
  }
  template <unsigned kWords>
  void read_words(const Access &access, const Offsets &offsets);
  void overwrite(const Access &access, const Offsets &offsets, unsigned bytes, State state);
  void check_overwrite(const Access &access, unsigned lane, size_t word);

  [[noreturn]] void refuse(uintptr_t offset, unsigned bytes, unsigned lane) const;
  [[noreturn]] void explain(const Access &access, unsigned lane, size_t word,
                            const char *verb) const;
  [[noreturn]] void explain(const Access &access, unsigned lane, size_t word, uint32_t earlier_read,
                            unsigned earlier_warp) const;

  const Clocks &clocks_;
  size_t bytes_;
  std::unique_ptr<uint8_t[]> storage_;
  uint8_t *data_;                // into storage_, aligned
  std::vector<Write> writes_;    // [word]: the last write
  std::vector<uint32_t> reads_;  // [word / 4][warp][word % 4]: the last read of each warp, packed
};

}  // namespace flashsmith::emulator
