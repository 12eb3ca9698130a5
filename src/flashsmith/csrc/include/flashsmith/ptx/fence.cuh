// Fences between ordinary accesses and the units that work on their own: bulk copies and wgmma (the
// async proxy). PTX ISA, Memory Consistency Model: Proxies; membar/fence. Of single threads.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// fence.mbarrier_init: by the thread that has initialised mbarriers, before bulk copies or other
// blocks of the cluster use them.
FLASHSMITH_DEVICE void fence_mbarrier_init(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::fence_mbarrier_init(where);
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// fence.proxy.async: what the thread has written to shared memory, or knows others to have written,
// is visible to bulk copies and wgmma that come after, and what it has loaded is read before they
// overwrite it.
FLASHSMITH_DEVICE void fence_proxy_async(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::fence_proxy_async(where);
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// fence.proxy.async of global memory: bulk copies that come after find there what the thread knows
// others to have written.
FLASHSMITH_DEVICE void fence_proxy_async_global(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::fence_proxy_async_global(where);
#else
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

}  // namespace flashsmith::ptx
