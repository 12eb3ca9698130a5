#include "emulator/instruction.h"

#include <cstring>

namespace flashsmith::emulator {

const char *name(Instruction instruction) {
  switch (instruction) {
#define FLASHSMITH_NAME(instruction) \
  case Instruction::instruction:     \
    return #instruction;
    FLASHSMITH_NAME(barrier_sync)
    FLASHSMITH_NAME(warp_sync)
    FLASHSMITH_NAME(cp_async_wait_group)
    FLASHSMITH_NAME(cp_async_16)
    FLASHSMITH_NAME(cp_async_4)
    FLASHSMITH_NAME(cp_async_commit_group)
    FLASHSMITH_NAME(load_shared)
    FLASHSMITH_NAME(store_shared)
    FLASHSMITH_NAME(load_global)
    FLASHSMITH_NAME(store_global)
    FLASHSMITH_NAME(add_global)
    FLASHSMITH_NAME(ldmatrix_x4)
    FLASHSMITH_NAME(stmatrix_x4)
    FLASHSMITH_NAME(mma_m16n8k16)
    FLASHSMITH_NAME(shuffle_xor)
    FLASHSMITH_NAME(shuffle_from)
    FLASHSMITH_NAME(vote_any)
    FLASHSMITH_NAME(elect_one)
    FLASHSMITH_NAME(thread_load_shared)
    FLASHSMITH_NAME(thread_store_shared)
    FLASHSMITH_NAME(thread_load_global)
    FLASHSMITH_NAME(thread_store_global)
    FLASHSMITH_NAME(thread_atomic_add)
    FLASHSMITH_NAME(thread_arrive_global)
    FLASHSMITH_NAME(thread_add_global)
    FLASHSMITH_NAME(thread_replace_global)
    FLASHSMITH_NAME(thread_poll_global)
    FLASHSMITH_NAME(release_global)
    FLASHSMITH_NAME(wait_global)
    FLASHSMITH_NAME(wait_for_launch_before)
    FLASHSMITH_NAME(let_next_launch_begin)
    FLASHSMITH_NAME(named_barrier_sync)
    FLASHSMITH_NAME(named_barrier_arrive)
    FLASHSMITH_NAME(set_register_count)
    FLASHSMITH_NAME(cluster_sync)
    FLASHSMITH_NAME(mbarrier_init)
    FLASHSMITH_NAME(mbarrier_arrive)
    FLASHSMITH_NAME(mbarrier_arrive_remote)
    FLASHSMITH_NAME(mbarrier_arrive_expect_tx)
    FLASHSMITH_NAME(mbarrier_wait_parity)
    FLASHSMITH_NAME(fence_mbarrier_init)
    FLASHSMITH_NAME(fence_proxy_async)
    FLASHSMITH_NAME(fence_proxy_async_global)
    FLASHSMITH_NAME(tma_load)
    FLASHSMITH_NAME(bulk_load)
    FLASHSMITH_NAME(tma_store)
    FLASHSMITH_NAME(bulk_store)
    FLASHSMITH_NAME(bulk_add)
    FLASHSMITH_NAME(tma_store_commit_group)
    FLASHSMITH_NAME(tma_store_wait_group)
    FLASHSMITH_NAME(tma_store_wait_group_read)
    FLASHSMITH_NAME(wgmma)
    FLASHSMITH_NAME(wgmma_fence)
    FLASHSMITH_NAME(wgmma_commit_group)
    FLASHSMITH_NAME(wgmma_wait_group)
#undef FLASHSMITH_NAME
    case Instruction::none:
      break;
  }
  return "nothing";
}

const char *base_name(const char *path) {
  const char *slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

std::string describe(const Where &where) {
  return std::string(base_name(where.file_name)) + ":" + std::to_string(where.line) + ":" +
         std::to_string(where.column);
}

std::string Step::describe() const {
  std::string text = name(instruction());
  if (modifier() != 0) text += "<" + std::to_string(modifier()) + ">";
  if (where.line != 0) text += " at " + emulator::describe(where);
  return text;
}

}  // namespace flashsmith::emulator
