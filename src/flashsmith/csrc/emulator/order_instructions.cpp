// The instructions by which blocks synchronise through words in global memory.
#include "emulator/async_instructions.h"

namespace flashsmith::emulator {

namespace {

constexpr unsigned kWordBytes = 4;

uint32_t add(Instruction instruction, uint32_t *word, uint32_t amount, Where where) {
  must_have_waited(instruction);
  uint32_t before = 0;
  site_alone({instruction, 0, where}, [&](Block &block, Thread &thread) {
    block.global.check(word, kWordBytes, GlobalMemory::Use::store, thread.lane);
    before = block.cluster.order.arrive(thread.in_grid(), word, amount);
  });
  return before;
}

}  // namespace

void release_global(uint32_t *word, uint32_t value, Where where) {
  must_have_waited(Instruction::release_global);
  site_alone({Instruction::release_global, 0, where}, [&](Block &block, Thread &thread) {
    block.global.check(word, kWordBytes, GlobalMemory::Use::store, thread.lane);
    block.cluster.order.release(thread.in_grid(), word, value);
  });
}

uint32_t thread_arrive_global(uint32_t *word, Where where) {
  return add(Instruction::thread_arrive_global, word, 1, where);
}

uint32_t thread_add_global(uint32_t *word, uint32_t amount, Where where) {
  return add(Instruction::thread_add_global, word, amount, where);
}

uint32_t thread_replace_global(uint32_t *word, uint32_t expected, uint32_t value, Where where) {
  must_have_waited(Instruction::thread_replace_global);
  uint32_t before = 0;
  const Step step{Instruction::thread_replace_global, 0, where};
  site_alone(step, [&](Block &block, Thread &thread) {
    block.global.check(word, kWordBytes, GlobalMemory::Use::store, thread.lane);
    before = block.cluster.order.replace(thread.in_grid(), word, expected, value);
  });
  return before;
}

uint32_t thread_poll_global(const uint32_t *word, uint32_t known, Where where) {
  must_have_waited(Instruction::thread_poll_global);
  uint32_t found = known;
  const Step step{Instruction::thread_poll_global, 0, where};
  site_alone(step, [&](Block &block, Thread &thread) {
    block.global.check(word, kWordBytes, GlobalMemory::Use::load, thread.lane);
    thread.waits_at = step;
    found = block.cluster.poll_word(thread, word, known);
  });
  return found;
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
