// The instructions: the last lane to arrive does the work of the whole warp.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "emulator/block.h"
#include "emulator/mma.h"
#include "emulator/traffic.h"

namespace flashsmith::emulator {

namespace {

struct Nothing {};

struct MemoryArguments {
  void *to;
  const void *from;
  bool active = true;  // false leaves a lane out of an access to global memory
};

[[noreturn]] void refuse(Instruction instruction, int value, const char *what) {
  throw Problem{self->lane, std::to_string(value) + what, instruction};
}

unsigned checked_size(int bytes, Instruction instruction) {
  if (bytes != 4 && bytes != 8 && bytes != 16) {
    refuse(instruction, bytes, " bytes: must be 4, 8 or 16");
  }
  return static_cast<unsigned>(bytes);
}

void count_shared(Block &block, const uint32_t (&offsets)[kLanes], unsigned bytes) {
  if (!block.options.count) return;
  const Wavefronts wavefronts = shared_wavefronts(offsets, bytes);
  block.counters.shared_wavefronts += wavefronts.actual;
  block.counters.shared_wavefronts_ideal += wavefronts.ideal;
}

// The addresses in global memory that the active lanes of a warp access.
class GlobalAddresses {
  const void *addresses_[kLanes];
  unsigned count_ = 0;

 public:
  void add(const void *address) { addresses_[count_++] = address; }
  unsigned bytes(unsigned each) const { return count_ * each; }
  unsigned sectors() const { return global_sectors({addresses_, count_}); }
};

void count_load(Block &block, const GlobalAddresses &addresses, unsigned bytes) {
  block.counters.global_load_bytes += addresses.bytes(bytes);
  if (block.options.count) block.counters.global_load_sectors += addresses.sectors();
}

void count_store(Block &block, const GlobalAddresses &addresses, unsigned bytes) {
  block.counters.global_store_bytes += addresses.bytes(bytes);
  if (block.options.count) block.counters.global_store_sectors += addresses.sectors();
}

// Records a load. A single register goes to plain arithmetic, which is not seen here, so that it
// counts as used at once.
void issue_load(Block &block, const Warp &warp, const void *registers, unsigned bytes) {
  if (bytes == sizeof(uint32_t)) return;
  block.clocks.loads(warp.index).issue(registers, bytes, block.clocks.now(warp.index));
}

// Lands the copies of the oldest groups until at most `pending` groups are left.
void land_copies(Block &block, Warp &warp, size_t pending) {
  while (warp.group_sizes.size() > pending) {
    const auto end = warp.copies.begin() + static_cast<ptrdiff_t>(warp.group_sizes.front());
    for (auto copy = warp.copies.begin(); copy != end; ++copy) {
      block.shared.land_copy({warp.index, copy->instruction}, copy->lane, copy->offset,
                             copy->source, copy->bytes);
    }
    warp.copies.erase(warp.copies.begin(), end);
    warp.group_sizes.erase(warp.group_sizes.begin());
  }
}

template <Instruction kInstruction, unsigned kBytes>
void copy_async(void *shared, const void *global, bool active) {
  must_have_waited(kInstruction);
  MemoryArguments arguments{shared, global, active};
  collective({kInstruction}, arguments, [](Block &block, Warp &warp, MemoryArguments **lanes) {
    static constexpr std::byte kZeros[kBytes] = {};
    uint32_t offsets[kLanes];
    GlobalAddresses addresses;
    for (unsigned i = 0; i < kLanes; ++i) {
      offsets[i] = block.shared.offset(lanes[i]->to, kBytes, i);
      const void *source = lanes[i]->active ? lanes[i]->from : kZeros;
      if (lanes[i]->active) {
        block.global.check(source, kBytes, GlobalMemory::Use::load, i);
        addresses.add(source);
      }
      warp.copies.push_back({source, offsets[i], static_cast<uint8_t>(i), kBytes, kInstruction});
    }
    block.shared.begin_copy({warp.index, kInstruction}, offsets, kBytes);
    ++block.counters.cp_async;
    count_shared(block, offsets, kBytes);
    count_load(block, addresses, kBytes);
  });
}

}  // namespace

unsigned thread_index() { return self->index; }
Dim3 block_index() { return self->block->block_index; }
Dim3 grid_size() { return self->block->launch.grid; }
void *shared_memory() { return self->block->shared.data(); }

void barrier_sync(Where where) {
  const Step step{Instruction::barrier_sync, 0, where};
  if (self->block->drops(step)) return;
  Nothing nothing;
  collective(step, nothing, [](Block &block, Warp &warp, Nothing **) {
    block.passed(warp, warp.step);
    block.named_barriers.arrive(warp, 0, block.launch.threads, true);
  });
}

void warp_sync(Where where) {
  const Step step{Instruction::warp_sync, 0, where};
  if (self->block->drops(step)) return;
  Nothing nothing;
  collective(step, nothing, [](Block &block, Warp &warp, Nothing **) {
    block.passed(warp, warp.step);
    block.clocks.synchronise(warp.index);
  });
}

void cp_async_wait_group(int pending, Where where) {
  if (pending < 0 || pending > 255) {
    refuse(Instruction::cp_async_wait_group, pending, " groups left pending: must be 0 to 255");
  }
  const Step step{Instruction::cp_async_wait_group, static_cast<uint32_t>(pending), where};
  if (self->block->drops(step)) return;
  Nothing nothing;
  collective(step, nothing, [](Block &block, Warp &warp, Nothing **) {
    block.passed(warp, warp.step);
    land_copies(block, warp, warp.step.modifier());
  });
}

void cp_async_16(void *shared, const void *global, bool active) {
  copy_async<Instruction::cp_async_16, 16>(shared, global, active);
}

void cp_async_4(void *shared, const void *global, bool active) {
  copy_async<Instruction::cp_async_4, 4>(shared, global, active);
}

void cp_async_commit_group() {
  Nothing nothing;
  collective({Instruction::cp_async_commit_group}, nothing, [](Block &, Warp &warp, Nothing **) {
    size_t committed = 0;
    for (size_t size : warp.group_sizes) committed += size;
    warp.group_sizes.push_back(warp.copies.size() - committed);
  });
}

void load_shared(void *registers, const void *shared, int bytes) {
  const unsigned size = checked_size(bytes, Instruction::load_shared);
  MemoryArguments arguments{registers, shared};
  collective({Instruction::load_shared, size}, arguments,
             [](Block &block, Warp &warp, MemoryArguments **lanes) {
               const unsigned size = warp.step.modifier();
               uint32_t offsets[kLanes];
               for (unsigned i = 0; i < kLanes; ++i) {
                 offsets[i] = block.shared.offset(lanes[i]->from, size, i);
               }
               block.shared.read({warp.index, Instruction::load_shared}, offsets, size);
               issue_load(block, warp, lanes[0]->to, size);
               for (unsigned i = 0; i < kLanes; ++i)
                 std::memcpy(lanes[i]->to, lanes[i]->from, size);
               count_shared(block, offsets, size);
             });
}

void store_shared(void *shared, const void *registers, int bytes) {
  const unsigned size = checked_size(bytes, Instruction::store_shared);
  MemoryArguments arguments{shared, registers};
  collective({Instruction::store_shared, size}, arguments,
             [](Block &block, Warp &warp, MemoryArguments **lanes) {
               const unsigned size = warp.step.modifier();
               uint32_t offsets[kLanes];
               for (unsigned i = 0; i < kLanes; ++i) {
                 offsets[i] = block.shared.offset(lanes[i]->to, size, i);
               }
               block.clocks.loads(warp.index).use(lanes[0]->from);
               block.shared.write({warp.index, Instruction::store_shared}, offsets, size);
               for (unsigned i = 0; i < kLanes; ++i)
                 std::memcpy(lanes[i]->to, lanes[i]->from, size);
               count_shared(block, offsets, size);
             });
}

void load_global(void *registers, const void *global, int bytes, bool active) {
  must_have_waited(Instruction::load_global);
  const unsigned size = checked_size(bytes, Instruction::load_global);
  MemoryArguments arguments{registers, global, active};
  collective({Instruction::load_global, size}, arguments,
             [](Block &block, Warp &warp, MemoryArguments **lanes) {
               const unsigned size = warp.step.modifier();
               GlobalAddresses addresses;
               for (unsigned i = 0; i < kLanes; ++i) {
                 if (!lanes[i]->active) continue;
                 block.global.check(lanes[i]->from, size, GlobalMemory::Use::load, i);
                 std::memcpy(lanes[i]->to, lanes[i]->from, size);
                 addresses.add(lanes[i]->from);
               }
               count_load(block, addresses, size);
             });
}

void store_global(void *global, const void *registers, int bytes, bool active) {
  must_have_waited(Instruction::store_global);
  const unsigned size = checked_size(bytes, Instruction::store_global);
  MemoryArguments arguments{global, registers, active};
  collective({Instruction::store_global, size}, arguments,
             [](Block &block, Warp &warp, MemoryArguments **lanes) {
               const unsigned size = warp.step.modifier();
               block.clocks.loads(warp.index).use(lanes[0]->from);
               GlobalAddresses addresses;
               for (unsigned i = 0; i < kLanes; ++i) {
                 if (!lanes[i]->active) continue;
                 block.global.check(lanes[i]->to, size, GlobalMemory::Use::store, i);
                 std::memcpy(lanes[i]->to, lanes[i]->from, size);
                 addresses.add(lanes[i]->to);
               }
               count_store(block, addresses, size);
             });
}

void add_global(float *global, const float *values, int count) {
  must_have_waited(Instruction::add_global);
  if (count != 1 && count != 4) refuse(Instruction::add_global, count, " numbers: must be 1 or 4");
  MemoryArguments arguments{global, values};
  collective({Instruction::add_global, static_cast<uint32_t>(count)}, arguments,
             [](Block &block, Warp &warp, MemoryArguments **lanes) {
               const unsigned count = warp.step.modifier(), size = count * sizeof(float);
               GlobalAddresses addresses;
               for (unsigned i = 0; i < kLanes; ++i) {
                 block.global.check(lanes[i]->to, size, GlobalMemory::Use::store, i);
                 auto *sums = static_cast<float *>(lanes[i]->to);
                 const auto *values = static_cast<const float *>(lanes[i]->from);
                 for (unsigned word = 0; word < count; ++word) {
                   std::atomic_ref(sums[word]).fetch_add(values[word], std::memory_order_relaxed);
                 }
                 addresses.add(sums);
               }
               count_store(block, addresses, size);
             });
}

void ldmatrix_x4(uint32_t (&fragment)[4], const void *row, bool transposed) {
  constexpr unsigned kRowBytes = 16, kRows = 8, kMatrices = 4;
  MemoryArguments arguments{fragment, row};
  collective({Instruction::ldmatrix_x4, transposed}, arguments,
             [](Block &block, Warp &warp, MemoryArguments **lanes) {
               uint32_t offsets[kLanes];
               const uint16_t *rows[kLanes];
               for (unsigned i = 0; i < kLanes; ++i) {
                 offsets[i] = block.shared.offset(lanes[i]->from, kRowBytes, i);
                 rows[i] = static_cast<const uint16_t *>(lanes[i]->from);
               }
               block.shared.read({warp.index, Instruction::ldmatrix_x4, true}, offsets, kRowBytes);
               issue_load(block, warp, lanes[0]->to, kMatrices * sizeof(uint32_t));
               // Lane i receives elements 2p, 2p + 1 of row g of each matrix, or of column g if
               // transposed.
               const bool transposed = warp.step.modifier() != 0;
               for (unsigned i = 0; i < kLanes; ++i) {
                 auto *fragment = static_cast<uint32_t *>(lanes[i]->to);
                 const unsigned g = i / 4, p = i % 4;
                 for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
                   const uint16_t *const *row = &rows[matrix * kRows];
                   if (transposed) {
                     fragment[matrix] = row[2 * p][g] | uint32_t{row[2 * p + 1][g]} << 16;
                   } else {
                     std::memcpy(&fragment[matrix], &row[g][2 * p], sizeof(uint32_t));
                   }
                 }
               }
               Counters &counters = block.counters;
               ++counters.ldmatrix;
               counters.longest_ldmatrix_run =
                   std::max(counters.longest_ldmatrix_run, ++warp.ldmatrix_run);
               warp.mma_run = 0;
               count_shared(block, offsets, kRowBytes);
             });
}

void stmatrix_x4(void *row, const uint32_t (&fragment)[4], bool transposed) {
  constexpr unsigned kRowBytes = 16, kRows = 8, kMatrices = 4;
  MemoryArguments arguments{row, fragment};
  collective(
      {Instruction::stmatrix_x4, transposed}, arguments,
      [](Block &block, Warp &warp, MemoryArguments **lanes) {
        uint32_t offsets[kLanes];
        for (unsigned i = 0; i < kLanes; ++i) {
          offsets[i] = block.shared.offset(lanes[i]->to, kRowBytes, i);
        }
        block.clocks.loads(warp.index).use(lanes[0]->from);
        block.shared.write({warp.index, Instruction::stmatrix_x4, true}, offsets, kRowBytes);
        // Lane i gives elements 2p, 2p + 1 of row g of each matrix, or of column g if
        // transposed.
        const bool transposed = warp.step.modifier() != 0;
        for (unsigned i = 0; i < kLanes; ++i) {
          const auto *fragment = static_cast<const uint32_t *>(lanes[i]->from);
          const unsigned g = i / 4, p = i % 4;
          for (unsigned matrix = 0; matrix < kMatrices; ++matrix) {
            for (unsigned half = 0; half < 2; ++half) {
              const unsigned along = 2 * p + half;
              auto *row =
                  static_cast<uint16_t *>(lanes[matrix * kRows + (transposed ? along : g)]->to);
              row[transposed ? g : along] = static_cast<uint16_t>(fragment[matrix] >> 16 * half);
            }
          }
        }
        count_shared(block, offsets, kRowBytes);
      });
}

void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t &b0, const uint32_t &b1,
                  MmaType type) {
  MmaArguments arguments{c, a, {&b0, &b1}};
  collective({Instruction::mma_m16n8k16, static_cast<uint32_t>(type)}, arguments,
             [](Block &block, Warp &warp, MmaArguments **lanes) {
               LoadsInFlight &loads = block.clocks.loads(warp.index);
               for (const uint32_t *operand : {lanes[0]->a, lanes[0]->b[0], lanes[0]->b[1]}) {
                 loads.use(operand);
               }
               multiply_m16n8k16(lanes, static_cast<MmaType>(warp.step.modifier()));
               Counters &counters = block.counters;
               ++counters.mma;
               counters.cp_async_in_flight_mma += !warp.copies.empty();
               counters.longest_mma_run = std::max(counters.longest_mma_run, ++warp.mma_run);
               warp.ldmatrix_run = 0;
             });
}

float shuffle_xor(float value, int lane_mask) {
  struct Arguments {
    float value, result;
  } arguments{value, 0};
  if (lane_mask < 0 || lane_mask >= static_cast<int>(kLanes)) {
    refuse(Instruction::shuffle_xor, lane_mask, " as lane mask: must be 0 to 31");
  }
  collective({Instruction::shuffle_xor, static_cast<uint32_t>(lane_mask)}, arguments,
             [](Block &block, Warp &warp, Arguments **lanes) {
               for (unsigned i = 0; i < kLanes; ++i) {
                 lanes[i]->result = lanes[i ^ warp.step.modifier()]->value;
               }
               ++block.counters.shuffles;
             });
  return arguments.result;
}

int shuffle_from(int value, int lane) {
  struct Arguments {
    int value, lane, result;
  } arguments{value, lane, 0};
  if (lane < 0 || lane >= static_cast<int>(kLanes)) {
    refuse(Instruction::shuffle_from, lane, " as lane: must be 0 to 31");
  }
  collective({Instruction::shuffle_from}, arguments, [](Block &block, Warp &, Arguments **lanes) {
    for (unsigned i = 0; i < kLanes; ++i) lanes[i]->result = lanes[lanes[i]->lane]->value;
    ++block.counters.shuffles;
  });
  return arguments.result;
}

bool vote_any(bool predicate) {
  struct Arguments {
    bool predicate, result;
  } arguments{predicate, false};
  collective({Instruction::vote_any}, arguments, [](Block &, Warp &, Arguments **lanes) {
    bool any = false;
    for (unsigned i = 0; i < kLanes; ++i) any |= lanes[i]->predicate;
    for (unsigned i = 0; i < kLanes; ++i) lanes[i]->result = any;
  });
  return arguments.result;
}

}  // namespace flashsmith::emulator
