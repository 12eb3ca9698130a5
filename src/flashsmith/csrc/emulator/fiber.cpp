#include "emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace flashsmith::emulator {

namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kKeptBytes = 512 << 20;  // of addresses; few of their pages are ever touched

char *map(size_t bytes, size_t stride, size_t guard) {
  void *mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  auto *start = static_cast<char *>(mapping);
  for (size_t offset = 0; offset < bytes; offset += stride) {
    if (mprotect(start + offset, guard, PROT_NONE) != 0) {
      munmap(mapping, bytes);
      throw std::bad_alloc();
    }
  }
  return start;
}

// The mappings of ended launches, for the next ones. Nothing waits for the lock: a process that was
// forked while another thread held it would wait forever.
class Unused {
 public:
  // Returns a mapping of this size, the last that was put here; nullptr if there is none, or if
  // another thread is looking for one.
  char *take(size_t bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    for (size_t i = mappings_.size(); i > 0; --i) {
      if (mappings_[i - 1].bytes != bytes) continue;
      char *start = mappings_[i - 1].start;
      mappings_.erase(mappings_.begin() + static_cast<ptrdiff_t>(i - 1));
      bytes_ -= bytes;
      return start;
    }
    return nullptr;
  }

  // Keeps a mapping, and unmaps the oldest ones if there are too many. Unmaps this one if another
  // thread is here or the list cannot grow, because a destructor that calls this must not throw.
  void put(char *start, size_t bytes) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !append({start, bytes})) {
      munmap(start, bytes);
      return;
    }
    for (bytes_ += bytes; bytes_ > kKeptBytes; mappings_.erase(mappings_.begin())) {
      munmap(mappings_.front().start, mappings_.front().bytes);
      bytes_ -= mappings_.front().bytes;
    }
  }

 private:
  struct Mapping {
    char *start;
    size_t bytes;
  };

  bool append(const Mapping &mapping) noexcept {
    try {
      mappings_.push_back(mapping);
    } catch (const std::bad_alloc &) {
      return false;
    }
    return true;
  }

  std::mutex mutex_;
  std::vector<Mapping> mappings_;  // oldest first
  size_t bytes_ = 0;
};

Unused &unused() {
  static auto *mappings =
      new Unused;  // never destroyed: a thread may launch until the process ends
  return *mappings;
}

}  // namespace

Stacks::Stacks(unsigned count)
    : guard_bytes_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
      stride_(guard_bytes_ + kStackBytes),
      mapping_bytes_(stride_ * count),
      mapping_(unused().take(mapping_bytes_)) {
  if (!mapping_) mapping_ = map(mapping_bytes_, stride_, guard_bytes_);
}

Stacks::~Stacks() { unused().put(mapping_, mapping_bytes_); }

}  // namespace flashsmith::emulator

#if FLASHSMITH_FIBER_ASSEMBLY

// Pushes the callee-saved registers, stores the stack pointer in *save, takes `load` as the stack
// pointer, pops, returns. Floating-point control words are the same in all fibers and are not
// switched.
#ifdef __APPLE__
#define SYMBOL "_flashsmith_switch_stack"
#define DIRECTIVES ".private_extern " SYMBOL "\n"
#else
#define SYMBOL "flashsmith_switch_stack"
#define DIRECTIVES ".hidden " SYMBOL "\n"
#endif

#if defined(__x86_64__)
asm(".text\n.p2align 4\n.globl " SYMBOL "\n" DIRECTIVES SYMBOL
    ":\n"
    R"(
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
asm(".text\n.p2align 4\n.globl " SYMBOL "\n" DIRECTIVES SYMBOL
    ":\n"
    R"(
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#endif

namespace flashsmith::emulator {

void prepare_fiber(Fiber &fiber, char *, char *top, void (*entry)()) {
  auto aligned = reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15};
  auto **frame = reinterpret_cast<void **>(aligned);
#if defined(__x86_64__)
  constexpr int kSavedRegisters = 6;
  *--frame = nullptr;  // the return address of entry(): ends a backtrace, keeps the ABI's alignment
  *--frame = reinterpret_cast<void *>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--frame = nullptr;
#else
  constexpr int kSavedRegisters = 20, kLinkRegister = 11;
  frame -= kSavedRegisters;
  for (int i = 0; i < kSavedRegisters; ++i) frame[i] = nullptr;
  frame[kLinkRegister] = reinterpret_cast<void *>(entry);
#endif
  fiber.stack_pointer = frame;
}

}  // namespace flashsmith::emulator

#else

namespace flashsmith::emulator {

void prepare_fiber(Fiber &fiber, char *bottom, char *top, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = bottom;
  fiber.context.uc_stack.ss_size = static_cast<size_t>(top - bottom);
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}

}  // namespace flashsmith::emulator

#endif
