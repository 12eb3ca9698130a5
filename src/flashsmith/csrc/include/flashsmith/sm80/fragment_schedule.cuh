// The schedule by which the fragments of one mma operand move from shared memory to registers.
#pragma once

#include "flashsmith/ptx/schedule.cuh"

namespace flashsmith::sm80 {

// A gemm takes kFragments mma steps. kLoad fragments are loaded at a time, after the previous mma;
// 0: all of them, into separate registers. With kDoubleBuffer the next load is issued before the
// mma of this step, which hides its latency, and ptxas may move it further ahead; a whole operand
// is then loaded one fragment ahead of its use.
template <int kFragments, int kLoad, bool kDoubleBuffer>
struct FragmentSchedule {
  static constexpr bool whole = kLoad == 0;
  static constexpr int group = whole ? (kDoubleBuffer ? 1 : kFragments) : kLoad;
  static constexpr int buffered = kDoubleBuffer ? 2 * group : group;
  static constexpr int slots = whole || buffered > kFragments ? kFragments : buffered;

  // Calls load(slot, fragment) for the fragments due at `step`; the mma of `step` then reads slot
  // step % slots. `never_zero`: see schedule_fence.
  template <typename Load>
  static FLASHSMITH_DEVICE void advance(int step, int never_zero, Load load) {
    if (step % group != 0) return;
    if (step > 0 && !kDoubleBuffer) ptx::schedule_fence(never_zero);
    if (step == 0 || !kDoubleBuffer) load_group(step / group, load);
    if (kDoubleBuffer) load_group(step / group + 1, load);
  }

 private:
  template <typename Load>
  static FLASHSMITH_DEVICE void load_group(int index, Load load) {
#pragma unroll
    for (int i = 0; i < group; i++) {
      const int fragment = index * group + i;
      if (fragment < kFragments) load(fragment % slots, fragment);
    }
  }
};

}  // namespace flashsmith::sm80
