#include "emulator/shared_memory.h"

#include <algorithm>
#include <cstring>

namespace flashsmith::emulator {

namespace {

constexpr uint8_t kPoison = 0xFF;  // 0xFFFF is a NaN in fp16 and bf16
constexpr size_t kAlignment = 1024;
constexpr unsigned kLanes = 32, kMaxWarps = 32;

// The shadow of a read: epoch << 8 | lane << 2 | kind. 0: never read.
enum ReadKind : uint32_t { kLoad, kLdmatrix };
constexpr uint32_t pack_read(uint32_t epoch, unsigned lane, ReadKind kind) {
  return epoch << 8 | lane << 2 | kind;
}
constexpr uint32_t read_epoch(uint32_t read) { return read >> 8; }
constexpr unsigned read_lane(uint32_t read) { return read >> 2 & 63; }
constexpr ReadKind read_kind(uint32_t read) { return static_cast<ReadKind>(read & 3); }

constexpr ReadKind kind_of(Instruction instruction) {
  return instruction == Instruction::ldmatrix_x4 ? kLdmatrix : kLoad;
}

}  // namespace

SharedMemory::SharedMemory(size_t bytes, Clocks &clocks, unsigned first_warp, unsigned warps)
    : clocks_(clocks),
      first_warp_(first_warp),
      warps_(warps),
      bytes_(bytes),
      storage_(new uint8_t[bytes + kAlignment]) {
  const auto start = reinterpret_cast<uintptr_t>(storage_.get());
  data_ = storage_.get() + (kAlignment - start % kAlignment) % kAlignment;
  const size_t chunks = (bytes + kWordBytes * kWordsPerChunk - 1) / (kWordBytes * kWordsPerChunk);
  writes_.resize(chunks * kWordsPerChunk);
  reads_.resize(chunks * kWordsPerChunk * warps);
}

void SharedMemory::start_block() {
  std::memset(data_, kPoison, bytes_);
  std::fill(writes_.begin(), writes_.end(), Write{kNever, 0, 0, Instruction::none});
  if (!clocks_.restarted()) return;
  std::fill(reads_.begin(), reads_.end(), 0);
  for (AsyncReads &reads : async_reads_) std::fill(reads.epochs.begin(), reads.epochs.end(), 0);
}

uint32_t SharedMemory::offset(const void *address, size_t bytes, unsigned alignment,
                              unsigned lane) const {
  const uintptr_t offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(data_);
  if (bytes > bytes_ || offset > bytes_ - bytes || offset % alignment != 0) {
    refuse(offset, bytes, alignment, lane);
  }
  return static_cast<uint32_t>(offset);
}

void SharedMemory::refuse(uintptr_t offset, size_t bytes, unsigned alignment, unsigned lane) const {
  const std::string distance = std::to_string(static_cast<intptr_t>(offset));
  if (bytes > bytes_ || offset > bytes_ - bytes) {
    throw Problem{lane, std::to_string(bytes) + " bytes at shared-memory offset " + distance +
                            " are out of bounds: the block has " + std::to_string(bytes_) +
                            " bytes"};
  }
  throw Problem{lane, "shared-memory offset " + distance +
                          " is misaligned: must be a multiple of " + std::to_string(alignment)};
}

// ---- checks of order ----

void SharedMemory::explain_unless_own(const Party &party, size_t word, const char *verb) const {
  const Write &write = writes_[word];
  const unsigned lane = party.lane;
  const bool generic = write.actor < clocks_.warps();
  const bool ordered = write.epoch <= party.seen[write.actor];
  const bool own = write.actor == party.warp && is_own(party, write.lane);
  const bool fenced = !party.async || !generic || is_fenced(party, write);
  if (write.epoch != kNever && (ordered || own) && fenced) return;

  std::string text = verb + (" shared-memory offset " + std::to_string(word * kWordBytes));
  if (write.epoch != kNever && (ordered || own)) {
    text += ", which " + std::string(name(write.instruction)) + " of " +
            actor(write.actor, write.lane) + " has written: needs a fence_proxy_async after that";
  } else if (write.epoch != kNever) {
    text += after(party, write.instruction, generic ? write.actor : kNoWarp, write.lane);
  } else if (write.instruction == Instruction::none) {
    text += ", which is uninitialised: nothing has written it in this block";
  } else if (write.instruction == Instruction::mbarrier_init) {
    text += ", which is an mbarrier";
  } else {
    text += " while " + std::string(name(write.instruction)) + " of " +
            (generic ? actor(write.actor, write.lane) : "lane " + std::to_string(write.lane)) +
            " is in flight there: no " +
            (generic ? "cp_async_wait_group" : "mbarrier_wait_parity") + " has covered it";
  }
  throw Problem{lane, text};
}

template <unsigned kWords>
bool SharedMemory::reads_precede(size_t first, const uint32_t *limits) const {
  const uint32_t *read = &reads_[index_of_read(first, first_warp_)];
  uint32_t late = 0;  // has the sign bit if a difference is negative: epochs have 24 bits
  for (unsigned i = 0; i < warps_; ++i, read += kWordsPerChunk) {
    for (unsigned word = 0; word < kWords; ++word) late |= limits[i] - read_epoch(read[word]);
  }
  return late >> 31 == 0;
}

void SharedMemory::check_overwrite(const Party &party, size_t word) const {
  if (writes_[word].instruction != Instruction::none) check_written(party, word, "writes");
  const uint32_t *read = &reads_[index_of_read(word, first_warp_)];
  for (unsigned i = 0; i < warps_; ++i, read += kWordsPerChunk) {
    const unsigned warp = first_warp_ + i;
    const uint32_t epoch = read_epoch(*read);
    const bool own = warp == party.warp, matrix = read_kind(*read) == kLdmatrix;
    // A lane can release reads of its warp as a whole; lanes of one warp need a warp_sync.
    const bool released = matrix && !own && epoch <= party.seen[clocks_.collective(warp)];
    const bool ordered =
        epoch <= party.seen[warp] || released || (own && is_own(party, read_lane(*read)));
    const Instruction earlier = matrix ? Instruction::ldmatrix_x4 : Instruction::load_shared;
    if (!ordered) refuse_overwrite(party, word, earlier, warp, read_lane(*read));
    const uint32_t arrived = own ? clocks_.arrived(warp) : party.seen[clocks_.loaded(warp)];
    if (party.async && epoch > arrived) refuse_in_flight(party, word, earlier, warp);
  }
  check_async_reads(party, word);
}

void SharedMemory::check_async_reads(const Party &party, size_t word) const {
  for (const AsyncReads &reads : async_reads_) {
    if (reads.epochs[word] > party.seen[reads.component]) {
      refuse_overwrite(party, word, reads.instruction, kNoWarp, kWholeWarp);
    }
  }
}

template <unsigned kWords>
void SharedMemory::check_overwrite(const Party &party, size_t first, const uint32_t *limits) const {
  const bool precede = reads_precede<kWords>(first, limits);
  for (size_t word = first; word < first + kWords; ++word) {
    if (!precede) [[unlikely]] {
      check_overwrite(party, word);
      continue;
    }
    if (writes_[word].instruction != Instruction::none) check_written(party, word, "writes");
    check_async_reads(party, word);
  }
}

void SharedMemory::refuse_overwrite(const Party &party, size_t word, Instruction earlier,
                                    unsigned earlier_warp, unsigned earlier_lane) const {
  throw Problem{party.lane, "writes shared-memory offset " + std::to_string(word * kWordBytes) +
                                after(party, earlier, earlier_warp, earlier_lane)};
}

void SharedMemory::refuse_in_flight(const Party &party, size_t word, Instruction load,
                                    unsigned warp) const {
  throw Problem{party.lane, "writes shared-memory offset " + std::to_string(word * kWordBytes) +
                                " while " + name(load) + " of " + actor(warp, kWholeWarp) +
                                " is in flight there: nothing has used its registers, and no "
                                "fence_proxy_async of all lanes came, before the warp released it"};
}

std::string SharedMemory::actor(unsigned warp, unsigned lane) const {
  std::string text = "warp " + std::to_string(warp - first_warp_);
  if (lane < kLanes) text += ", lane " + std::to_string(lane);
  return text;
}

std::string SharedMemory::after(const Party &party, Instruction earlier, unsigned earlier_warp,
                                unsigned earlier_lane) const {
  std::string text = ", race: not ordered after " + std::string(name(earlier));
  if (earlier_warp != kNoWarp) text += " of " + actor(earlier_warp, earlier_lane);
  if (earlier_warp == party.warp && !party.async) {
    return text + " (same warp: needs a warp_sync or barrier_sync between)";
  }
  const bool plain = earlier_warp != kNoWarp && !party.async;
  return text + (plain ? " (needs a barrier_sync between)" : " (needs a wait or barrier between)");
}

// ---- accesses of a warp ----

inline void SharedMemory::remember_read(const Party &party, size_t word) {
  uint32_t &read = reads_[index_of_read(word, party.warp)];
  unsigned lane = party.identity;
  ReadKind kind = kind_of(party.instruction);
  if (read_epoch(read) > party.seen[party.warp] && read_lane(read) != lane) {
    lane = kWholeWarp;  // several lanes, unordered among each other
    kind = std::min(kind, read_kind(read));
  }
  read = pack_read(clocks_.now(party.warp), lane, kind);
}

template <unsigned kWords>
void SharedMemory::read_words(const Access &access, const Offsets &offsets) {
  const uint32_t *seen = clocks_.seen(access.warp);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned identity = access.whole_warp ? kWholeWarp : lane;
    const Party party{access.warp, identity, seen, access.instruction, lane};
    const size_t first = offsets[lane] / kWordBytes;  // aligned: all words in one chunk
    for (size_t word = first; word < first + kWords; ++word) {
      const bool known = word > first && writes_[word] == writes_[word - 1];
      if (!known) check_written(party, word, "reads");
      remember_read(party, word);
    }
  }
  clocks_.accessed(access.warp, ~0u);
}

void SharedMemory::read(const Access &access, const Offsets &offsets, unsigned bytes) {
  switch (bytes / kWordBytes) {
    case 1:
      return read_words<1>(access, offsets);
    case 2:
      return read_words<2>(access, offsets);
    default:
      return read_words<4>(access, offsets);
  }
}

template <unsigned kWords>
void SharedMemory::overwrite_words(const Access &access, const Offsets &offsets, bool lands_later) {
  const uint32_t *seen = clocks_.seen(access.warp);
  const uint32_t epoch = lands_later ? kNever : clocks_.now(access.warp);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned identity = access.whole_warp ? kWholeWarp : lane;
    const Party party{access.warp, identity, seen, access.instruction, lane};
    const Write mine{epoch, static_cast<uint16_t>(access.warp), static_cast<uint8_t>(identity),
                     access.instruction};
    const size_t first = offsets[lane] / kWordBytes;  // aligned: all words in one chunk
    check_overwrite<kWords>(party, first, seen + first_warp_);
    std::fill_n(&writes_[first], kWords, mine);
  }
  clocks_.wrote(access.warp, ~0u);
}

void SharedMemory::overwrite(const Access &access, const Offsets &offsets, unsigned bytes,
                             bool lands_later) {
  switch (bytes / kWordBytes) {
    case 1:
      return overwrite_words<1>(access, offsets, lands_later);
    case 2:
      return overwrite_words<2>(access, offsets, lands_later);
    default:
      return overwrite_words<4>(access, offsets, lands_later);
  }
}

void SharedMemory::write(const Access &access, const Offsets &offsets, unsigned bytes) {
  overwrite(access, offsets, bytes, false);
}

void SharedMemory::begin_copy(const Access &access, const Offsets &offsets, unsigned bytes) {
  overwrite(access, offsets, bytes, true);
  for (uint32_t offset : offsets) std::memset(data_ + offset, kPoison, bytes);
}

void SharedMemory::land_copy(const Access &access, unsigned lane, uint32_t offset,
                             const void *source, unsigned bytes) {
  // Nothing has touched the words since begin_copy: no access is ordered after a copy in flight.
  const Write mine{clocks_.now(access.warp), static_cast<uint16_t>(access.warp),
                   static_cast<uint8_t>(lane), access.instruction};
  std::fill_n(&writes_[offset / kWordBytes], bytes / kWordBytes, mine);
  std::memcpy(data_ + offset, source, bytes);
  clocks_.wrote(access.warp, 1u << lane);
}

// ---- accesses of a lane alone ----

void SharedMemory::read_alone(const Access &access, unsigned lane, uint32_t offset,
                              unsigned bytes) {
  const Party party{access.warp, lane, clocks_.seen(access.warp, lane), access.instruction, lane};
  for (size_t word = offset / kWordBytes; word < (offset + bytes) / kWordBytes; ++word) {
    check_written(party, word, "reads");
    remember_read(party, word);
  }
  clocks_.accessed(access.warp, 1u << lane);
}

void SharedMemory::write_alone(const Access &access, unsigned lane, uint32_t offset,
                               unsigned bytes) {
  const Party party{access.warp, lane, clocks_.seen(access.warp, lane), access.instruction, lane};
  for (size_t word = offset / kWordBytes; word < (offset + bytes) / kWordBytes; ++word) {
    check_overwrite(party, word);
    writes_[word] = {clocks_.now(access.warp), static_cast<uint16_t>(access.warp),
                     static_cast<uint8_t>(lane), access.instruction};
  }
  clocks_.wrote(access.warp, 1u << lane);
}

void SharedMemory::reserve_barrier(const Access &access, unsigned lane, uint32_t offset) {
  constexpr unsigned kBarrierBytes = 8;
  write_alone(access, lane, offset, kBarrierBytes);
  for (size_t word = offset / kWordBytes; word < (offset + kBarrierBytes) / kWordBytes; ++word) {
    writes_[word].epoch = kNever;
  }
}

// ---- accesses of the async proxy ----

SharedMemory::AsyncReads &SharedMemory::reads_of(const AsyncAccess &access) {
  for (AsyncReads &reads : async_reads_) {
    if (reads.component == access.component) return reads;
  }
  return async_reads_.emplace_back(access.component, access.instruction,
                                   std::vector<uint32_t>(writes_.size()));
}

void SharedMemory::read(const AsyncAccess &access, uint32_t offset, unsigned bytes) {
  const Party party = party_of(access);
  uint32_t *epochs = reads_of(access).epochs.data();
  for (size_t word = offset / kWordBytes; word < (offset + bytes) / kWordBytes; ++word) {
    check_written(party, word, "reads");
    epochs[word] = access.epoch;
  }
}

void SharedMemory::begin_copy(const AsyncAccess &access, uint32_t offset, unsigned bytes) {
  const Party party = party_of(access);
  uint32_t limits[kMaxWarps];
  for (unsigned i = 0; i < warps_; ++i) {
    const unsigned warp = first_warp_ + i;
    const uint32_t arrived =
        warp == party.warp ? clocks_.arrived(warp) : party.seen[clocks_.loaded(warp)];
    limits[i] = std::min(party.seen[warp], arrived);
  }
  const size_t end = (offset + bytes) / kWordBytes;
  for (size_t word = offset / kWordBytes; word < end;) {
    if (word % kWordsPerChunk == 0 && end - word >= kWordsPerChunk) {
      check_overwrite<kWordsPerChunk>(party, word, limits);
      word += kWordsPerChunk;
    } else {
      check_overwrite(party, word++);
    }
  }
  const Write mine{kNever, static_cast<uint16_t>(access.component),
                   static_cast<uint8_t>(access.lane), access.instruction};
  std::fill_n(&writes_[offset / kWordBytes], bytes / kWordBytes, mine);
  std::memset(data_ + offset, kPoison, bytes);
}

void SharedMemory::land_copy(const AsyncAccess &access, uint32_t offset, unsigned bytes) {
  const Write mine{access.epoch, static_cast<uint16_t>(access.component),
                   static_cast<uint8_t>(access.lane), access.instruction};
  std::fill_n(&writes_[offset / kWordBytes], bytes / kWordBytes, mine);
}

}  // namespace flashsmith::emulator
