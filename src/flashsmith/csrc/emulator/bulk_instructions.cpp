// The bulk copy instructions of sm_90.
#include <algorithm>

#include "emulator/async_instructions.h"

namespace flashsmith::emulator {

namespace {

void check_rank(const TensorMap &map, int rank, unsigned lane) {
  if (static_cast<int>(map.rank) == rank) return;
  throw Problem{lane, std::to_string(rank) + " coordinates for a tensor map of rank " +
                          std::to_string(map.rank)};
}

}  // namespace

void tma_load(void *shared, const TensorMap &map, void *barrier, const int *coordinates, int rank) {
  const auto own = static_cast<uint16_t>(1u << self->block->rank);
  tma_load_multicast(shared, map, barrier, own, coordinates, rank);
}

void tma_load_multicast(void *shared, const TensorMap &map, void *barrier, uint16_t blocks,
                        const int *coordinates, int rank) {
  must_have_waited(Instruction::tma_load);
  alone({Instruction::tma_load}, [&](Block &block, Thread &thread) {
    check_rank(map, rank, thread.lane);
    const uint32_t bytes = box_bytes(map);
    const uint32_t destination = block.shared.offset(shared, bytes, kBulkAlignment, thread.lane);
    const uint32_t offset = offset_of_barrier(block, thread, barrier);
    check_box(block.global, map, coordinates, GlobalMemory::Use::load, thread.lane);
    if (blocks == 0) throw Problem{thread.lane, "a mask of no block"};
    BulkLoad load{.map = map, .offset = destination, .bytes = bytes};
    std::copy_n(coordinates, map.rank, load.coordinates);
    for (int i = 0; i < 16; ++i) {
      if ((blocks >> i & 1) == 0) continue;
      block.cluster.peer(thread, i).mbarriers.load(thread, load, offset);
    }
    ++block.counters.tma_loads;
    block.counters.tma_load_bytes += bytes;
  });
}

void bulk_load(void *shared, const void *global, int bytes, void *barrier) {
  must_have_waited(Instruction::bulk_load);
  alone({Instruction::bulk_load}, [&](Block &block, Thread &thread) {
    check_row(block.global, global, bytes, GlobalMemory::Use::load, thread.lane);
    const auto size = static_cast<uint32_t>(bytes);
    const uint32_t destination =
        block.shared.offset(shared, size_t{size}, kBulkRowAlignment, thread.lane);
    const uint32_t offset = offset_of_barrier(block, thread, barrier);
    follow(block, thread, global, size, GlobalOrder::Use::load);
    block.mbarriers.load(thread, {.row = global, .offset = destination, .bytes = size}, offset);
    ++block.counters.tma_loads;
    block.counters.tma_load_bytes += size;
  });
}

void bulk_store(void *global, const void *shared, int bytes) {
  must_have_waited(Instruction::bulk_store);
  alone({Instruction::bulk_store}, [&](Block &block, Thread &thread) {
    block.stores.row(thread, GlobalOrder::Use::store, global, shared, bytes);
  });
}

void bulk_add(float *global, const void *shared, int bytes) {
  must_have_waited(Instruction::bulk_add);
  alone({Instruction::bulk_add}, [&](Block &block, Thread &thread) {
    block.stores.row(thread, GlobalOrder::Use::add, global, shared, bytes);
  });
}

void tma_store(const TensorMap &map, const void *shared, const int *coordinates, int rank) {
  must_have_waited(Instruction::tma_store);
  alone({Instruction::tma_store}, [&](Block &block, Thread &thread) {
    check_rank(map, rank, thread.lane);
    block.stores.store(thread, map, shared, coordinates);
  });
}

void tma_store_commit_group(Where where) {
  site_alone({Instruction::tma_store_commit_group, 0, where},
             [](Block &block, Thread &thread) { block.stores.commit(thread.index); });
}

void tma_store_wait_group(int pending, Where where) {
  const Step step{Instruction::tma_store_wait_group, static_cast<uint32_t>(pending), where};
  site_alone(step, [&](Block &block, Thread &thread) {
    const unsigned groups = checked(step.instruction(), pending, 0, 255, "groups left pending");
    block.stores.wait(thread, groups, false);
  });
}

void tma_store_wait_group_read(int pending, Where where) {
  const Step step{Instruction::tma_store_wait_group_read, static_cast<uint32_t>(pending), where};
  site_alone(step, [&](Block &block, Thread &thread) {
    const unsigned groups = checked(step.instruction(), pending, 0, 255, "groups left pending");
    block.stores.wait(thread, groups, true);
  });
}

}  // namespace flashsmith::emulator
