// Rings of messages in shared memory, synchronised by mbarriers and by named barriers.
#pragma once

#include "device/harness.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/named_barrier.cuh"
#include "flashsmith/ptx/warpgroup.cuh"

namespace wrappers::barriers {

constexpr int kRounds = 100, kMessages = 1024;  // where messages begin in shared memory

// Word i of the message of a round, and the index of the word that a lane reads.
FLASHSMITH_HOST_DEVICE constexpr uint32_t word_of(int round, int i) {
  return static_cast<uint32_t>(round * 1000 + i);
}
FLASHSMITH_HOST_DEVICE constexpr int word_read(int round, int lane) {
  return (lane * 7 + round) % 32;
}

// One warp sends, and the others add up what they read: sums (thread).
struct MbarrierRing {
  static constexpr int kConsumerWarps = 4, kThreads = 32 * (1 + kConsumerWarps), kStages = 2;

  uint32_t *sums;

  FLASHSMITH_DEVICE void operator()() const {
    if (thread_index() == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        mbarrier_init(full(stage), 32);
        mbarrier_init(empty(stage), kConsumerWarps);
      }
      fence_mbarrier_init();
    }
    barrier_sync();
    const int lane = thread_index() % 32;
    uint32_t sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      const int stage = round % kStages, parity = round / kStages % 2;
      const shared_address message = shared_memory() + kMessages + stage * 128;
      if (warp_index() == 0) {
        mbarrier_wait_parity(empty(stage), parity ^ 1);
        thread_store_shared_4(message + lane * 4, word_of(round, lane));
        mbarrier_arrive(full(stage));
      } else {
        mbarrier_wait_parity(full(stage), parity);
        sum += load_shared_4(message + word_read(round, lane) * 4);
        warp_sync();
        if (lane == 0) mbarrier_arrive(empty(stage));
      }
    }
    sums[thread_index()] = sum;
  }

 private:
  static FLASHSMITH_DEVICE shared_address full(int stage) {
    return shared_memory() + stage * kMbarrierBytes;
  }
  static FLASHSMITH_DEVICE shared_address empty(int stage) { return full(kStages + stage); }
};

// The same ring with one stage. Barrier 1: a message is there; barrier 2: it has been read.
struct NamedBarrierRing {
  static constexpr int kConsumerWarps = 2, kThreads = 32 * (1 + kConsumerWarps);

  uint32_t *sums;

  FLASHSMITH_DEVICE void operator()() const {
    const shared_address message = shared_memory() + kMessages;
    const int lane = thread_index() % 32;
    uint32_t sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      if (warp_index() == 0) {
        if (round > 0) named_barrier_sync(2, kThreads);
        store_shared_4(message + lane * 4, word_of(round, lane));
        named_barrier_arrive(1, kThreads);
      } else {
        named_barrier_sync(1, kThreads);
        sum += load_shared_4(message + word_read(round, lane) * 4);
        if (round < kRounds - 1) named_barrier_arrive(2, kThreads);
      }
    }
    sums[thread_index()] = sum;
  }
};

template <class Ring>
void check_ring(Results &results, const char *name) {
  Buffer<uint32_t> sums(Ring::kThreads);
  run(Ring{sums.data()}, {.shared_bytes = kMessages + 256}, sums);
  int wrong = 0;
  for (int thread = 0; thread < Ring::kThreads; ++thread) {
    uint32_t expected = 0;
    for (int round = 0; round < kRounds && thread >= 32; ++round) {
      expected += word_of(round, word_read(round, thread % 32));
    }
    wrong += sums[static_cast<size_t>(thread)] != expected;
  }
  results.check(wrong == 0, "%s: the sums of %d threads are wrong", name, wrong);
}

inline void check(Results &results) {
  for (int i = 0; i < 10; ++i) {
    check_ring<MbarrierRing>(results, "mbarriers");
    check_ring<NamedBarrierRing>(results, "named barriers");
  }
}

}  // namespace wrappers::barriers
