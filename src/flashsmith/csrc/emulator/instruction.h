// The instructions, for the scheduler and for messages.
#pragma once

#include <cstdint>
#include <string>

#include "emulator/device.h"

namespace flashsmith::emulator {

enum class Instruction : uint8_t {
  none,
  barrier_sync,
  warp_sync,
  cp_async_wait_group,
  cp_async_16,
  cp_async_4,
  cp_async_commit_group,
  load_shared,
  store_shared,
  load_global,
  store_global,
  add_global,
  ldmatrix_x4,
  stmatrix_x4,
  mma_m16n8k16,
  shuffle_xor,
  shuffle_from,
  vote_any,
  elect_one,
  thread_load_shared,
  thread_store_shared,
  thread_load_global,
  thread_store_global,
  thread_atomic_add,
  thread_arrive_global,
  thread_add_global,
  thread_replace_global,
  thread_poll_global,
  release_global,
  wait_global,
  wait_for_launch_before,
  let_next_launch_begin,
  named_barrier_sync,
  named_barrier_arrive,
  set_register_count,
  cluster_sync,
  mbarrier_init,
  mbarrier_arrive,
  mbarrier_arrive_remote,
  mbarrier_arrive_expect_tx,
  mbarrier_wait_parity,
  fence_mbarrier_init,
  fence_proxy_async,
  fence_proxy_async_global,
  tma_load,
  bulk_load,
  tma_store,
  bulk_store,
  bulk_add,
  tma_store_commit_group,
  tma_store_wait_group,
  tma_store_wait_group_read,
  wgmma,
  wgmma_fence,
  wgmma_commit_group,
  wgmma_wait_group,
};

const char *name(Instruction instruction);

// Returns text like "file.cuh:12:7", with the file's base name.
std::string describe(const Where &where);
const char *base_name(const char *path);

// An instruction as a lane executes it. The lanes of a warp must agree in all of it, which is
// `key`.
struct Step {
  constexpr Step() = default;
  constexpr Step(Instruction instruction, uint32_t modifier = 0)
      : key(static_cast<uint64_t>(instruction) | uint64_t{modifier} << 8) {}
  Step(Instruction instruction, uint32_t modifier, const Where &where)
      : key(static_cast<uint64_t>(instruction) | uint64_t{modifier & 0xFF} << 8 |
            uint64_t{where.line} << 16 | uint64_t{where.column} << 40),
        where(where) {}

  Instruction instruction() const { return static_cast<Instruction>(key & 0xFF); }
  uint32_t modifier() const { return key >> 8 & 0xFF; }
  std::string describe() const;

  uint64_t key = 0;
  Where where{};
};

// Thrown while an instruction executes; becomes a Fault that also names kernel, block and thread.
struct Problem {
  unsigned lane;
  std::string text;
  Step step{};  // the step; by default the warp's current one
};

}  // namespace flashsmith::emulator
