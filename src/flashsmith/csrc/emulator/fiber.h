// Fibers: each CUDA thread has a stack, and switching takes a few nanoseconds. A fiber stays on its
// host thread.
#pragma once

#include <cstddef>

#if defined(__x86_64__) || defined(__aarch64__)
#define FLASHSMITH_FIBER_ASSEMBLY 1
#else
#define FLASHSMITH_FIBER_ASSEMBLY 0
#include <ucontext.h>
#endif

namespace flashsmith::emulator {

struct Fiber {
#if FLASHSMITH_FIBER_ASSEMBLY
  void *stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
};

// Makes the first switch to `fiber` call `entry`, which must never return, on [bottom, top).
void prepare_fiber(Fiber &fiber, char *bottom, char *top, void (*entry)());

#if FLASHSMITH_FIBER_ASSEMBLY
extern "C" void flashsmith_switch_stack(void **save, void *load);
#endif

// Suspends the caller as `from` and continues where `to` was suspended.
inline void switch_fiber(Fiber &from, Fiber &to) {
#if FLASHSMITH_FIBER_ASSEMBLY
  flashsmith_switch_stack(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.context, &to.context);
#endif
}

// Equal stacks, each above a page that faults. Pages are committed when first touched and reused,
// also by later launches: to map and unmap the stacks would take a short launch longer than to run.
class Stacks {
 public:
  explicit Stacks(unsigned count);
  ~Stacks();
  Stacks(const Stacks &) = delete;
  Stacks &operator=(const Stacks &) = delete;

  char *bottom(unsigned index) const { return mapping_ + index * stride_ + guard_bytes_; }
  char *top(unsigned index) const { return mapping_ + (index + 1) * stride_; }

 private:
  size_t guard_bytes_, stride_, mapping_bytes_;
  char *mapping_;
};

}  // namespace flashsmith::emulator
