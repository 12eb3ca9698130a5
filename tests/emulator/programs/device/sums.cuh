// Bulk copies of consecutive bytes, and sums in global memory by bulk copies and by warps, against
// plain loops.
#pragma once

#include "device/harness.cuh"
#include "flashsmith/attention/dQ_sums.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/reduction.cuh"
#include "flashsmith/ptx/tma.cuh"

namespace wrappers::sums {

// Each block loads its terms, adds them to the sums that all blocks share, doubles them, and adds
// them again.
struct AddRows {
  static constexpr int kThreads = 64, kBlocks = 6, kTile = 1040;  // no multiple of 128

  const float *terms;  // (block, count)
  float *sums;
  int count;

  FLASHSMITH_DEVICE void operator()() const {
    const shared_address barrier = shared_memory(), row = shared_memory() + kTile;
    if (thread_index() == 0) {
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(barrier, count * 4);
      bulk_load(row, terms + block_index_x() * count, count * 4, barrier);
    }
    barrier_sync();
    mbarrier_wait_parity(barrier, 0);
    if (thread_index() == 32) add(row);
    barrier_sync();
    for (int i = thread_index(); i < count; i += kThreads) {
      const float term = bits_float(thread_load_shared_4(row + i * 4));
      thread_store_shared_4(row + i * 4, float_bits(2 * term));
    }
    fence_proxy_async();
    barrier_sync();
    if (thread_index() == 32) add(row);
  }

 private:
  FLASHSMITH_DEVICE void add(shared_address row) const {
    bulk_add(sums, row, count * 4);
    tma_store_commit_group();
    tma_store_wait_group_read<0>();
  }
};

// Blocks store and add their terms one after the other.
struct AddInTurn {
  static constexpr int kThreads = 32, kBlocks = 6, kTile = 1040;

  const float *terms;  // (block, count)
  float *sums;
  uint32_t *turn;
  int count;

  FLASHSMITH_DEVICE void operator()() const {
    if (thread_index() != 0) return;
    const shared_address barrier = shared_memory(), row = shared_memory() + kTile;
    const int block = block_index_x();
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, count * 4);
    bulk_load(row, terms + block * count, count * 4, barrier);
    mbarrier_wait_parity(barrier, 0);
    if (block == 0) {
      bulk_store(sums, row, count * 4);
    } else {
      wait_global(turn, block);
      fence_proxy_async_global();
      bulk_add(sums, row, count * 4);
    }
    tma_store_commit_group();
    tma_store_wait_group<0>();
    release_global(turn, block + 1);
  }
};

// Rounding makes each sum depend on the order of its terms.
inline void check_order(Results &results, int count) {
  const auto size = static_cast<size_t>(count);
  Buffer<float> terms(size * AddInTurn::kBlocks), sums(size, NAN);
  Buffer<uint32_t> turn(4, 0);
  for (size_t i = 0; i < terms.size(); ++i) {
    const float large = i / size % 2 == 0 ? 1.f : -1.f;
    terms[i] = large * 0x1p30f + static_cast<float>(i % 7 + i / size);
  }
  run(AddInTurn{terms.data(), sums.data(), turn.data(), count},
      {.shared_bytes = AddInTurn::kTile + count * 4, .blocks = AddInTurn::kBlocks}, terms, sums,
      turn);
  int wrong = 0;
  for (size_t i = 0; i < size; ++i) {
    float expected = terms[i];
    for (size_t block = 1; block < AddInTurn::kBlocks; ++block) expected += terms[block * size + i];
    wrong += sums[i] != expected;
  }
  results.check(wrong == 0, "%d of %d sums in turn are wrong", wrong, count);
}

// The terms are whole numbers, so that their order makes no difference.
inline void check_count(Results &results, int count) {
  Random random(7);
  const auto size = static_cast<size_t>(count);
  Buffer<float> terms(size * AddRows::kBlocks), sums(size, 5.f);
  for (float &term : terms) term = static_cast<float>(random.bits() % 100);
  run(AddRows{terms.data(), sums.data(), count},
      {.shared_bytes = AddRows::kTile + count * 4, .blocks = AddRows::kBlocks}, terms, sums);
  int wrong = 0;
  for (size_t i = 0; i < size; ++i) {
    float expected = 5;
    for (size_t block = 0; block < AddRows::kBlocks; ++block) {
      expected += 3 * terms[block * size + i];
    }
    wrong += sums[i] != expected;
  }
  results.check(wrong == 0, "%d of %d sums are wrong", wrong, count);
}

// The index of a thread's word in plain order; a thread has kChunks chunks.
constexpr int kChunks = 3;
FLASHSMITH_HOST_DEVICE int word_of(int thread, int chunk, int word) {
  return (thread * kChunks + chunk) * 4 + word;
}

// Each block adds its own terms to the sums that all blocks share.
template <bool kWordsTogether>
struct AddFragments {
  static constexpr int kThreads = kSumsThreads, kBlocks = 5;

  const float *terms;  // (block, thread, chunk, word)
  float *sums;

  FLASHSMITH_DEVICE void operator()() const {
    const float *own = terms + block_index_x() * kThreads * kChunks * 4;
    for (int chunk = 0; chunk < kChunks; chunk++) {
      float words[4];
      for (int i = 0; i < 4; i++) {
        words[i] = thread_load_global(own + word_of(thread_index(), chunk, i));
      }
      add_to_sums<kWordsTogether>(sums, chunk, thread_index(), words);
    }
  }
};

template <bool kWordsTogether>
struct LoadFragments {
  static constexpr int kThreads = kSumsThreads;

  const float *sums;
  float *found;  // (thread, chunk, word)

  FLASHSMITH_DEVICE void operator()() const {
    for (int chunk = 0; chunk < kChunks; chunk++) {
      float words[4];
      load_sums<kWordsTogether>(words, sums, chunk, thread_index());
      for (int i = 0; i < 4; i++) {
        thread_store_global_4(found + word_of(thread_index(), chunk, i), float_bits(words[i]));
      }
    }
  }
};

template <bool kWordsTogether>
void check_fragments(Results &results) {
  using Add = AddFragments<kWordsTogether>;
  Random random(11);
  constexpr size_t kSize = size_t{kSumsThreads} * kChunks * 4;
  Buffer<float> terms(kSize * Add::kBlocks), sums(kSize, 0.f), found(kSize, -1.f);
  for (float &term : terms) term = static_cast<float>(random.bits() % 1000);
  run(Add{terms.data(), sums.data()}, {.blocks = Add::kBlocks}, terms, sums);
  run(LoadFragments<kWordsTogether>{sums.data(), found.data()}, {}, sums, found);
  int wrong = 0;
  for (size_t i = 0; i < kSize; ++i) {
    float expected = 0;
    for (size_t block = 0; block < Add::kBlocks; ++block) expected += terms[block * kSize + i];
    wrong += found[i] != expected;
  }
  results.check(wrong == 0, "%d sums of fragments are wrong", wrong);
}

inline void check(Results &results) {
  for (int count : {4, 12, 128, 4096}) check_count(results, count);
  for (int count : {4, 4096}) check_order(results, count);
  check_fragments<true>(results);
  check_fragments<false>(results);
}

}  // namespace wrappers::sums
