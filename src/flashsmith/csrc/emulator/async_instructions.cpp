// The instructions of sm_90: clusters, mbarriers, wgmma, named barriers, register counts.
#include "emulator/async_instructions.h"

#include <atomic>
#include <cstring>

namespace flashsmith::emulator {

namespace {

struct Nothing {};

constexpr unsigned kWordBytes = 4;

void arrive_at(Instruction instruction, int id, int threads, const Where &where) {
  const Step step{instruction, static_cast<uint32_t>(id), where};
  checked(instruction, id, 0, NamedBarriers::kBarriers - 1, "as barrier");
  checked(instruction, threads, kLanes, static_cast<int>(self->block->launch.threads), "threads");
  if (threads % static_cast<int>(kLanes) != 0) {
    throw Problem{self->lane, std::to_string(threads) + " threads: must be whole warps", step};
  }
  if (self->block->drops(step)) return;
  collective(step, threads, [](Block &block, Warp &warp, int **lanes) {
    const int threads = *lanes[0];
    for (unsigned lane = 1; lane < kLanes; ++lane) {
      if (*lanes[lane] != threads) {
        throw Problem{lane, "the lanes of the warp give different numbers of threads"};
      }
    }
    block.passed(warp, warp.step);
    block.named_barriers.arrive(warp, warp.step.modifier(), static_cast<unsigned>(threads),
                                warp.step.instruction() == Instruction::named_barrier_sync);
  });
}

Warpgroup &warpgroup_of(Block &block, const Warp &warp) {
  const unsigned index = warp.number / kWarpgroupWarps;
  if (index < block.warpgroups.size()) return block.warpgroups[index];
  throw Problem{0, "the warp belongs to no warpgroup: the block's last one lacks warps"};
}

}  // namespace

void named_barrier_sync(int id, int threads, Where where) {
  arrive_at(Instruction::named_barrier_sync, id, threads, where);
}

void named_barrier_arrive(int id, int threads, Where where) {
  arrive_at(Instruction::named_barrier_arrive, id, threads, where);
}

bool elect_one() {
  Nothing nothing;
  collective({Instruction::elect_one}, nothing, [](Block &, Warp &, Nothing **) {});
  return self->lane == 0;
}

uint32_t thread_load_shared(const void *shared) {
  uint32_t word;
  alone({Instruction::thread_load_shared}, [&](Block &block, Thread &thread) {
    const uint32_t offset = block.shared.offset(shared, kWordBytes, thread.lane);
    block.shared.read_alone({thread.warp->index, Instruction::thread_load_shared}, thread.lane,
                            offset, kWordBytes);
    std::memcpy(&word, shared, kWordBytes);
  });
  return word;
}

void thread_store_shared(void *shared, uint32_t word) {
  alone({Instruction::thread_store_shared}, [&](Block &block, Thread &thread) {
    const uint32_t offset = block.shared.offset(shared, kWordBytes, thread.lane);
    block.shared.write_alone({thread.warp->index, Instruction::thread_store_shared}, thread.lane,
                             offset, kWordBytes);
    std::memcpy(shared, &word, kWordBytes);
  });
}

void thread_load_global(void *registers, const void *global, int bytes) {
  must_have_waited(Instruction::thread_load_global);
  alone({Instruction::thread_load_global}, [&](Block &block, Thread &thread) {
    block.global.check(global, static_cast<unsigned>(bytes), GlobalMemory::Use::load, thread.lane);
  });
  std::memcpy(registers, global, static_cast<size_t>(bytes));
}

void thread_store_global(void *global, const void *registers, int bytes) {
  must_have_waited(Instruction::thread_store_global);
  alone({Instruction::thread_store_global}, [&](Block &block, Thread &thread) {
    if (bytes != 4 && bytes != 8 && bytes != 16) {
      throw Problem{thread.lane, std::to_string(bytes) + " bytes: must be 4, 8 or 16"};
    }
    const auto size = static_cast<unsigned>(bytes);
    block.global.check(global, size, GlobalMemory::Use::store, thread.lane);
    std::memcpy(global, registers, size);
    block.counters.global_store_bytes += size;
    ++block.counters.global_store_sectors;
  });
}

uint32_t thread_atomic_add(void *global, uint32_t value) {
  must_have_waited(Instruction::thread_atomic_add);
  uint32_t old;
  alone({Instruction::thread_atomic_add}, [&](Block &block, Thread &thread) {
    block.global.check(global, kWordBytes, GlobalMemory::Use::store, thread.lane);
    old = std::atomic_ref(*static_cast<uint32_t *>(global)).fetch_add(value);
  });
  return old;
}

// ---- launches ----

void wait_for_launch_before(Where where) {
  if (!self->block->launch.overlaps) return;
  site_alone({Instruction::wait_for_launch_before, 0, where},
             [](Block &, Thread &thread) { thread.has_waited = true; });
}

void let_next_launch_begin() { must_have_waited(Instruction::let_next_launch_begin); }

// ---- clusters ----

unsigned cluster_rank() { return self->block->rank; }

void cluster_sync(Where where) {
  const Step step{Instruction::cluster_sync, 0, where};
  if (self->block->drops(step)) return;
  Nothing nothing;
  collective(step, nothing, [](Block &block, Warp &warp, Nothing **) {
    block.passed(warp, warp.step);
    block.cluster.arrive(warp);
  });
}

// ---- mbarriers ----

void mbarrier_init(void *barrier, int count, Where where) {
  constexpr int kMaxArrivals = (1 << 20) - 1;
  site_alone({Instruction::mbarrier_init, 0, where}, [&](Block &block, Thread &thread) {
    const unsigned arrivals =
        checked(Instruction::mbarrier_init, count, 1, kMaxArrivals, "arrivals");
    block.mbarriers.initialise(thread, offset_of_barrier(block, thread, barrier), arrivals);
  });
}

void mbarrier_arrive(void *barrier, Where where) {
  site_alone({Instruction::mbarrier_arrive, 0, where}, [&](Block &block, Thread &thread) {
    ++block.counters.mbarrier_arrivals;
    block.mbarriers.arrive(thread, offset_of_barrier(block, thread, barrier), 0);
  });
}

void mbarrier_arrive_remote(void *barrier, int rank, Where where) {
  site_alone({Instruction::mbarrier_arrive_remote, 0, where}, [&](Block &block, Thread &thread) {
    const uint32_t offset = offset_of_barrier(block, thread, barrier);
    ++block.counters.mbarrier_arrivals;
    block.cluster.peer(thread, rank).mbarriers.arrive(thread, offset, 0);
  });
}

void mbarrier_arrive_expect_tx(void *barrier, int bytes, Where where) {
  const Step step{Instruction::mbarrier_arrive_expect_tx, 0, where};
  site_alone(step, [&](Block &block, Thread &thread) {
    constexpr int kMaxBytes = (1 << 20) - 1;
    ++block.counters.mbarrier_arrivals;
    block.mbarriers.arrive(thread, offset_of_barrier(block, thread, barrier),
                           checked(step.instruction(), bytes, 0, kMaxBytes, "bytes"));
  });
}

void mbarrier_wait_parity(void *barrier, int parity, Where where) {
  const Step step{Instruction::mbarrier_wait_parity, 0, where};
  site_alone(step, [&](Block &block, Thread &thread) {
    ++block.counters.mbarrier_waits;
    block.mbarriers.wait(thread, offset_of_barrier(block, thread, barrier),
                         checked(step.instruction(), parity, 0, 1, "as parity"), step);
  });
}

void fence_mbarrier_init(Where where) {
  site_alone({Instruction::fence_mbarrier_init, 0, where},
             [](Block &block, Thread &thread) { block.mbarriers.fence(thread); });
}

void fence_proxy_async(Where where) {
  site_alone({Instruction::fence_proxy_async, 0, where}, [](Block &block, Thread &thread) {
    block.clocks.fence(thread.warp->index, thread.lane);
  });
}

// ---- warpgroups ----

void wgmma(Wgmma instruction) {
  collective({Instruction::wgmma}, instruction, [](Block &block, Warp &warp, Wgmma **lanes) {
    if (lanes[0]->a_registers) block.clocks.loads(warp.index).use(lanes[0]->a_registers);
    warpgroup_of(block, warp).issue(warp, lanes);
  });
}

void wgmma_fence(Where where) {
  const Step step{Instruction::wgmma_fence, 0, where};
  if (self->block->drops(step)) return;
  Nothing nothing;
  collective(step, nothing, [](Block &block, Warp &warp, Nothing **) {
    block.passed(warp, warp.step);
    warpgroup_of(block, warp).fence(warp);
  });
}

void wgmma_commit_group(Where where) {
  const Step step{Instruction::wgmma_commit_group, 0, where};
  if (self->block->drops(step)) return;
  Nothing nothing;
  collective(step, nothing, [](Block &block, Warp &warp, Nothing **) {
    block.passed(warp, warp.step);
    warpgroup_of(block, warp).commit(warp);
  });
}

void wgmma_wait_group(int pending, Where where) {
  constexpr int kMaxPending = 7;
  const Step step{Instruction::wgmma_wait_group, static_cast<uint32_t>(pending), where};
  checked(step.instruction(), pending, 0, kMaxPending, "groups left pending");
  if (self->block->drops(step)) return;
  Nothing nothing;
  collective_until(step, nothing, [](Block &block, Warp &warp, Nothing **) {
    block.passed(warp, warp.step);
    return warpgroup_of(block, warp).wait(warp, warp.step.modifier());
  });
}

void set_register_count(int count, bool increase) {
  constexpr int kUnit = 8;
  constexpr uint32_t kIncrease = 0x80;
  const Instruction instruction = Instruction::set_register_count;
  const unsigned registers = checked(instruction, count, 24, 256, "registers");
  if (registers % kUnit != 0) {
    throw Problem{self->lane, std::to_string(count) + " registers: must be a multiple of 8",
                  instruction};
  }
  Nothing nothing;
  collective_until({instruction, registers / kUnit | (increase ? kIncrease : 0)}, nothing,
                   [](Block &block, Warp &warp, Nothing **) {
                     const bool increase = warp.step.modifier() & kIncrease;
                     const unsigned registers = (warp.step.modifier() & ~kIncrease) * kUnit;
                     const int more =
                         static_cast<int>(registers) - static_cast<int>(warp.registers);
                     if (!increase && more > 0) {
                       throw Problem{0, "the threads have only " + std::to_string(warp.registers) +
                                            " registers"};
                     }
                     if (more * static_cast<int>(kLanes) > block.free_registers) return false;
                     block.free_registers -= more * static_cast<int>(kLanes);
                     if (more < 0) block.retry_waiting();
                     warp.registers = registers;
                     return true;
                   });
}

}  // namespace flashsmith::emulator
