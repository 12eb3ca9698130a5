// The instructions by which blocks synchronise through words in global memory.
#include "emulator/async_instructions.h"

namespace flashsmith::emulator {

namespace {

constexpr unsigned kWordBytes = 4;

}  // namespace

void release_global(uint32_t *word, uint32_t value, Where where) {
  must_have_waited(Instruction::release_global);
  site_alone({Instruction::release_global, 0, where}, [&](Block &block, Thread &thread) {
    block.global.check(word, kWordBytes, GlobalMemory::Use::store, thread.lane);
    block.cluster.order.release(thread.in_grid(), word, value);
  });
}

uint32_t thread_arrive_global(uint32_t *word, Where where) {
  must_have_waited(Instruction::thread_arrive_global);
  uint32_t before = 0;
  site_alone({Instruction::thread_arrive_global, 0, where}, [&](Block &block, Thread &thread) {
    block.global.check(word, kWordBytes, GlobalMemory::Use::store, thread.lane);
    before = block.cluster.order.arrive(thread.in_grid(), word);
  });
  return before;
}

void wait_global(const uint32_t *word, uint32_t value, Where where) {
  must_have_waited(Instruction::wait_global);
  const Step step{Instruction::wait_global, 0, where};
  site_alone(step, [&](Block &block, Thread &thread) {
    block.global.check(word, kWordBytes, GlobalMemory::Use::load, thread.lane);
    thread.waits_at = step;
    block.cluster.wait_for_word(thread, word, value);
  });
}

void fence_proxy_async_global(Where where) {
  site_alone({Instruction::fence_proxy_async_global, 0, where},
             [](Block &block, Thread &thread) { block.cluster.order.fence(thread.in_grid()); });
}

}  // namespace flashsmith::emulator
