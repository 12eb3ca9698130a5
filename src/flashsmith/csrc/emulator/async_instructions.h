// The common part of the sm_90 instructions.
#pragma once

#include "emulator/block.h"

namespace flashsmith::emulator {

inline unsigned checked(Instruction instruction, int value, int minimum, int maximum,
                        const char *what) {
  if (value < minimum || value > maximum) {
    throw Problem{self->lane,
                  std::to_string(value) + " " + what + ": must be " + std::to_string(minimum) +
                      " to " + std::to_string(maximum),
                  instruction};
  }
  return static_cast<unsigned>(value);
}

// Executes a synchronisation of one lane, which is a site that can be dropped.
template <class Operation>
void site_alone(const Step &step, Operation operation) {
  if (self->block->drops(step)) return;
  alone(step, [&](Block &block, Thread &thread) {
    block.passed(*thread.warp, step);
    operation(block, thread);
  });
}

inline uint32_t offset_of_barrier(const Block &block, const Thread &thread, const void *barrier) {
  constexpr unsigned kBarrierBytes = 8;
  return block.shared.offset(barrier, kBarrierBytes, thread.lane);
}

}  // namespace flashsmith::emulator
