// A block's shared memory, with a shadow that records the writer and readers of each 4-byte word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "emulator/clocks.h"
#include "emulator/instruction.h"

namespace flashsmith::emulator {

using Offsets = uint32_t[32];  // offsets of the lanes in shared memory

// One instruction of one warp.
struct Access {
  unsigned warp;
  Instruction instruction;
  bool whole_warp = false;  // a lane passes the address, but all lanes get or provide data
};

// An access of the async proxy: a bulk copy or a tensor core.
struct AsyncAccess {
  unsigned component;       // of the clocks: orders later accesses after this one
  uint32_t epoch;           // in that component
  const uint32_t *ordered;  // [component]: the epochs that this access is ordered after
  Instruction instruction;
  unsigned warp, lane;  // issuers; the lane may be kWholeWarp
};

class SharedMemory {
 public:
  static constexpr unsigned kWholeWarp = 32;  // stands for a lane

  SharedMemory(size_t bytes, Clocks &clocks, unsigned first_warp, unsigned warps);

  void start_block();  // poisons everything; call after Clocks::start
  uint8_t *data() const { return data_; }

  // Returns the offset of [address, address + bytes), after checks of bounds and alignment.
  uint32_t offset(const void *address, unsigned bytes, unsigned lane) const {
    const uintptr_t offset =
        reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(data_);
    const bool inside = bytes <= bytes_ && offset <= bytes_ - bytes;
    if (!inside || (offset & (bytes - 1)) != 0) [[unlikely]]
      refuse(offset, bytes, bytes, lane);
    return static_cast<uint32_t>(offset);
  }
  // Returns the same for a size that is no power of two.
  uint32_t offset(const void *address, size_t bytes, unsigned alignment, unsigned lane) const;

  // The following functions check that `bytes` at each offset are ordered after the accesses that
  // they conflict with, and record the access.
  void read(const Access &access, const Offsets &offsets, unsigned bytes);
  void write(const Access &access, const Offsets &offsets, unsigned bytes);
  void begin_copy(const Access &access, const Offsets &offsets, unsigned bytes);  // poisons

  // Lands what begin_copy has announced for a lane.
  void land_copy(const Access &access, unsigned lane, uint32_t offset, const void *source,
                 unsigned bytes);

  // The following functions do the same for a lane that acts alone.
  void read_alone(const Access &access, unsigned lane, uint32_t offset, unsigned bytes);
  void write_alone(const Access &access, unsigned lane, uint32_t offset, unsigned bytes);

  // The following functions do the same for the async proxy; sizes are multiples of 4 bytes.
  void read(const AsyncAccess &access, uint32_t offset, unsigned bytes);
  void begin_copy(const AsyncAccess &access, uint32_t offset, unsigned bytes);  // poisons
  void land_copy(const AsyncAccess &access, uint32_t offset, unsigned bytes);   // only the shadow

  // Forbids plain accesses of the 8 bytes of an mbarrier from now on.
  void reserve_barrier(const Access &access, unsigned lane, uint32_t offset);

 private:
  // The last write. If it is not yet, or will never be, ordered before another access, epoch is
  // kNever. Then `instruction` tells why: none (uninitialised), a copy in flight, or mbarrier_init.
  struct Write {
    uint32_t epoch;
    uint16_t actor;  // component of the clocks; a warp for accesses of its lanes
    uint8_t lane;
    Instruction instruction;

    bool operator==(const Write &) const = default;
  };
  static constexpr uint32_t kNever = ~0u;
  static constexpr unsigned kWordBytes = 4, kWordsPerChunk = 4;

  // The party that accesses a word now. A lane's own earlier accesses are in order.
  struct Party {
    unsigned warp, identity;  // the identity is a lane, or kWholeWarp
    const uint32_t *seen;
    Instruction instruction;
    unsigned lane;       // for messages
    bool async = false;  // the async proxy, for this lane or warp
  };
  static constexpr unsigned kNoWarp = ~0u;
  // Returns whether an access was the party's own. An access of the warp as a whole is not, because
  // the lanes of a warp are in no order.
  static bool is_own(const Party &party, unsigned lane) {
    return lane == party.identity && lane != kWholeWarp;
  }

  // The last read by one unit of the async proxy.
  struct AsyncReads {
    unsigned component;
    Instruction instruction;
    std::vector<uint32_t> epochs;  // [word]
  };

  size_t index_of_read(size_t word, unsigned warp) const {
    const size_t chunk = word / kWordsPerChunk;
    return (chunk * warps_ + warp - first_warp_) * kWordsPerChunk + word % kWordsPerChunk;
  }
  static Party party_of(const AsyncAccess &access) {
    return {access.warp, access.lane, access.ordered, access.instruction, access.lane % kWholeWarp,
            true};
  }
  template <unsigned kWords>
  void read_words(const Access &access, const Offsets &offsets);
  void remember_read(const Party &party, size_t word);
  void overwrite(const Access &access, const Offsets &offsets, unsigned bytes, bool lands_later);
  void check_written(const Party &party, size_t word, const char *verb) const {
    const Write &write = writes_[word];
    bool ordered = write.epoch <= party.seen[write.actor];
    // Writes of lanes must also be fenced before the async proxy can see them.
    if (party.async && write.actor < clocks_.warps()) ordered &= is_fenced(party, write);
    if (!ordered) [[unlikely]]
      explain_unless_own(party, word, verb);
  }
  bool is_fenced(const Party &party, const Write &write) const {
    return write.epoch <= party.seen[clocks_.fenced(write.actor)];
  }
  void explain_unless_own(const Party &party, size_t word, const char *verb) const;
  // Returns whether all reads of these words, which are in one chunk, are of epochs up to
  // limits[warp]. If not, the overwrite may be in order nevertheless.
  template <unsigned kWords>
  bool reads_precede(size_t first, const uint32_t *limits) const;
  void check_overwrite(const Party &party, size_t word) const;
  template <unsigned kWords>
  void check_overwrite(const Party &party, size_t first, const uint32_t *limits) const;
  void check_async_reads(const Party &party, size_t word) const;
  template <unsigned kWords>
  void overwrite_words(const Access &access, const Offsets &offsets, bool lands_later);
  AsyncReads &reads_of(const AsyncAccess &access);

  [[noreturn]] void refuse(uintptr_t offset, size_t bytes, unsigned alignment, unsigned lane) const;
  [[noreturn]] void refuse_overwrite(const Party &party, size_t word, Instruction earlier,
                                     unsigned earlier_warp, unsigned earlier_lane) const;
  [[noreturn]] void refuse_in_flight(const Party &party, size_t word, Instruction load,
                                     unsigned warp) const;
  std::string after(const Party &party, Instruction earlier, unsigned earlier_warp,
                    unsigned earlier_lane) const;

  std::string actor(unsigned warp, unsigned lane) const;

  Clocks &clocks_;
  unsigned first_warp_, warps_;  // the block's, in the numbering of clocks
  size_t bytes_;
  std::unique_ptr<uint8_t[]> storage_;
  uint8_t *data_;                       // into storage_, aligned
  std::vector<Write> writes_;           // [word]: the last write
  std::vector<uint32_t> reads_;         // [word / 4][warp][word % 4]: the last read of each, packed
  std::deque<AsyncReads> async_reads_;  // of units that have read in any block
};

}  // namespace flashsmith::emulator
