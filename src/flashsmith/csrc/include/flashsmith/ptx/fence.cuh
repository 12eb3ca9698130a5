// Fences between ordinary accesses and the async proxy (bulk copies and wgmma). PTX ISA, Memory
// Consistency Model: Proxies; membar/fence. Executed by single threads.
#pragma once

#include "flashsmith/ptx/platform.cuh"

namespace flashsmith::ptx {

// fence.mbarrier_init: executed by the thread that has initialised mbarriers, before bulk copies or
// other blocks of the cluster use them.
FLASHSMITH_DEVICE void fence_mbarrier_init(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::fence_mbarrier_init(where);
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// fence.proxy.async: later bulk copies and wgmma see the writes to shared memory that the thread
// has made or has synchronised with, and do not overwrite what it has loaded before it is read.
FLASHSMITH_DEVICE void fence_proxy_async(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::fence_proxy_async(where);
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// fence.proxy.async of global memory: later bulk copies see the writes of others that the thread
// has synchronised with.
FLASHSMITH_DEVICE void fence_proxy_async_global(FLASHSMITH_CALL_SITE) {
#ifdef FLASHSMITH_EMULATOR
  emulator::fence_proxy_async_global(where);
#else
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

}  // namespace flashsmith::ptx
