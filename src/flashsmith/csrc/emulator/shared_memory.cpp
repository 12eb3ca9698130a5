#include "emulator/shared_memory.h"

#include <algorithm>
#include <cstring>

namespace flashsmith::emulator {

namespace {

constexpr uint8_t kPoison = 0xFF;  // 0xFFFF is a NaN in fp16 and bf16
constexpr size_t kAlignment = 1024;
constexpr unsigned kLanes = 32, kWholeWarp = 32;  // the latter in the place of a lane

// The shadow of a read: epoch << 8 | lane << 2 | kind. 0: never read.
enum ReadKind : uint32_t { kLoad, kLdmatrix };
constexpr uint32_t pack_read(uint32_t epoch, unsigned lane, Instruction instruction) {
  return epoch << 8 | lane << 2 | (instruction == Instruction::ldmatrix_x4 ? kLdmatrix : kLoad);
}
constexpr uint32_t read_epoch(uint32_t read) { return read >> 8; }
constexpr unsigned read_lane(uint32_t read) { return read >> 2 & 63; }
constexpr Instruction read_instruction(uint32_t read) {
  return (read & 3) == kLdmatrix ? Instruction::ldmatrix_x4 : Instruction::load_shared;
}

std::string actor(unsigned warp, unsigned lane) {
  std::string text = "warp " + std::to_string(warp);
  if (lane != kWholeWarp) text += ", lane " + std::to_string(lane);
  return text;
}

}  // namespace

void Clocks::start_block() {
  // Epochs go on from block to block, so that the shadow of reads need not be cleared each time.
  uint32_t base = 0;
  for (unsigned warp = 0; warp < warps_; ++warp) base = std::max(base, seen(warp)[warp] + 1);
  restarted_ = base > kRestart;
  std::fill(seen_.begin(), seen_.end(), restarted_ ? 0 : base);
}

void Clocks::end_epoch(unsigned warp) {
  uint32_t &own = seen_[size_t{warp} * warps_ + warp];
  if (++own == kMaxEpoch) {
    throw Problem{0, "more synchronisations in one block than the race check can count"};
  }
}

void Clocks::release(unsigned warp, Published &published) {
  end_epoch(warp);
  published.resize(warps_);
  for (unsigned i = 0; i < warps_; ++i) published[i] = std::max(published[i], seen(warp)[i]);
}

void Clocks::acquire(unsigned warp, const Published &published) {
  uint32_t *seen = &seen_[size_t{warp} * warps_];
  for (unsigned i = 0; i < warps_; ++i) seen[i] = std::max(seen[i], published[i]);
}

SharedMemory::SharedMemory(size_t bytes, const Clocks &clocks)
    : clocks_(clocks), bytes_(bytes), storage_(new uint8_t[bytes + kAlignment]) {
  const auto start = reinterpret_cast<uintptr_t>(storage_.get());
  data_ = storage_.get() + (kAlignment - start % kAlignment) % kAlignment;
  const size_t chunks = (bytes + kWordBytes * kWordsPerChunk - 1) / (kWordBytes * kWordsPerChunk);
  writes_.resize(chunks * kWordsPerChunk);
  reads_.resize(chunks * kWordsPerChunk * clocks.warps());
}

void SharedMemory::start_block() {
  std::memset(data_, kPoison, bytes_);
  std::fill(writes_.begin(), writes_.end(),
            Write{kNever, 0, 0, Instruction::none, State::uninitialised});
  if (clocks_.restarted()) std::fill(reads_.begin(), reads_.end(), 0);
}

void SharedMemory::refuse(uintptr_t offset, unsigned bytes, unsigned lane) const {
  const std::string distance = std::to_string(static_cast<intptr_t>(offset));
  if (bytes > bytes_ || offset > bytes_ - bytes) {
    throw Problem{lane, std::to_string(bytes) + " bytes at shared-memory offset " + distance +
                            " are out of bounds: the block has " + std::to_string(bytes_) +
                            " bytes"};
  }
  throw Problem{lane, "shared-memory offset " + distance +
                          " is misaligned: must be a multiple of " + std::to_string(bytes)};
}

template <unsigned kWords>
void SharedMemory::read_words(const Access &access, const Offsets &offsets) {
  const uint32_t *seen = clocks_.seen(access.warp);
  const uint32_t now = clocks_.now(access.warp);
  const uint32_t several = pack_read(now, kWholeWarp, access.instruction);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned party = access.whole_warp ? kWholeWarp : lane;
    const uint32_t mine = pack_read(now, party, access.instruction);
    const size_t first = offsets[lane] / kWordBytes;  // aligned: all words in one chunk
    const Write *write = &writes_[first];
    uint32_t *read = reads_of(first, access.warp);
    for (unsigned i = 0; i < kWords; ++i) {
      const bool known = i > 0 && write[i] == write[i - 1];
      if (!known && write[i].epoch > seen[write[i].warp]) {
        const bool own = write[i].epoch == now && write[i].warp == access.warp;
        if (!own || write[i].lane != party) explain(access, lane, first + i, "reads");
      }
      const bool other_lane = read_epoch(read[i]) == now && read_lane(read[i]) != party;
      read[i] = other_lane ? several : mine;
    }
  }
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

void SharedMemory::check_overwrite(const Access &access, unsigned lane, size_t word) {
  const uint32_t *seen = clocks_.seen(access.warp);
  const Write &write = writes_[word];
  if (write.epoch > seen[write.warp] && write.state != State::uninitialised) {
    const bool own = write.epoch == clocks_.now(access.warp) && write.warp == access.warp;
    if (!own || write.lane != lane) explain(access, lane, word, "writes");
  }
  const uint32_t *read = reads_of(word, 0);
  for (unsigned warp = 0; warp < clocks_.warps(); ++warp, read += kWordsPerChunk) {
    if (read_epoch(*read) <= seen[warp]) continue;
    if (warp != access.warp || read_lane(*read) != lane) explain(access, lane, word, *read, warp);
  }
}

void SharedMemory::overwrite(const Access &access, const Offsets &offsets, unsigned bytes,
                             State state) {
  const uint32_t epoch = state == State::written ? clocks_.now(access.warp) : kNever;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const Write mine{epoch, static_cast<uint8_t>(access.warp), static_cast<uint8_t>(lane),
                     access.instruction, state};
    const size_t first = offsets[lane] / kWordBytes;
    for (size_t word = first; word < first + bytes / kWordBytes; ++word) {
      check_overwrite(access, lane, word);
      writes_[word] = mine;
    }
  }
}

void SharedMemory::write(const Access &access, const Offsets &offsets, unsigned bytes) {
  overwrite(access, offsets, bytes, State::written);
}

void SharedMemory::begin_copy(const Access &access, const Offsets &offsets, unsigned bytes) {
  overwrite(access, offsets, bytes, State::in_flight);
  for (uint32_t offset : offsets) std::memset(data_ + offset, kPoison, bytes);
}

void SharedMemory::land_copy(const Access &access, unsigned lane, uint32_t offset,
                             const void *source, unsigned bytes) {
  // Nobody has touched the words since begin_copy: no access is ordered after one in flight.
  const Write mine{clocks_.now(access.warp), static_cast<uint8_t>(access.warp),
                   static_cast<uint8_t>(lane), access.instruction, State::written};
  std::fill_n(&writes_[offset / kWordBytes], bytes / kWordBytes, mine);
  std::memcpy(data_ + offset, source, bytes);
}

namespace {

std::string race(Instruction earlier, unsigned earlier_warp, unsigned earlier_lane, unsigned warp) {
  return ", race: not ordered after " + std::string(name(earlier)) + " of " +
         actor(earlier_warp, earlier_lane) +
         (earlier_warp == warp ? " (same warp: needs a warp_sync or barrier_sync between)"
                               : " (needs a barrier_sync between)");
}

}  // namespace

void SharedMemory::explain(const Access &access, unsigned lane, size_t word,
                           const char *verb) const {
  const Write &earlier = writes_[word];
  std::string text = verb + (" shared-memory offset " + std::to_string(word * kWordBytes));
  switch (earlier.state) {
    case State::uninitialised:
      text += ", which is uninitialised: nothing has written it in this block";
      break;
    case State::in_flight:
      text += " while " + std::string(name(earlier.instruction)) + " of " +
              actor(earlier.warp, earlier.lane) +
              " is in flight there: no cp_async_wait_group has covered it";
      break;
    case State::written:
      text += race(earlier.instruction, earlier.warp, earlier.lane, access.warp);
      break;
  }
  throw Problem{lane, text};
}

void SharedMemory::explain(const Access &access, unsigned lane, size_t word, uint32_t earlier_read,
                           unsigned earlier_warp) const {
  throw Problem{lane, "writes shared-memory offset " + std::to_string(word * kWordBytes) +
                          race(read_instruction(earlier_read), earlier_warp,
                               read_lane(earlier_read), access.warp)};
}

}  // namespace flashsmith::emulator
