#include "emulator/cluster.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "emulator/block.h"

namespace flashsmith::emulator {

Cluster::Cluster(const Launch &launch, const Options &options, GlobalOrder &order)
    : launch(launch),
      options(options),
      clocks(launch.cluster, launch.threads / kLanes),
      order(order) {
  for (unsigned rank = 0; rank < launch.cluster; ++rank) {
    blocks_.push_back(std::make_unique<Block>(*this, rank));
  }
}

Cluster::~Cluster() = default;

void Cluster::start(uint64_t index) {
  random_state_ = options.seed * 0x9E3779B97F4A7C15 + index;
  random_state_ = random();  // neighbouring seeds and clusters give unrelated orders
  clocks.start();
  for (const auto &block : blocks_) block->start(index * blocks_.size() + block->rank);
  arrived_.clear();
  clock_.clear();
  word_waiters_.clear();
}

void Cluster::run(uint64_t index) {
  start(index);
  std::vector<Warp *> warps;
  for (const auto &block : blocks_) {
    for (Warp &warp : block->warps()) warps.push_back(&warp);
  }
  for (live_ = warps.size(); live_ > 0;) {
    for (size_t i = warps.size(); i > 1; --i) std::swap(warps[i - 1], warps[random() % i]);
    retry_words();
    bool progress = false;
    for (Warp *warp : warps) {
      if (warp->ready == 0) continue;
      progress = true;
      resume(*warp);
    }
    if (progress || live_ == 0) continue;
    if (word_waiters_.empty()) report_deadlock();
    const bool polls = std::ranges::any_of(word_waiters_, [](Thread *t) { return t->polls_word; });
    if (!order.wait_beyond(words_version_, polls) && !end_polls()) report_deadlock();
  }
}

void Cluster::retry_words() {
  if (word_waiters_.empty() || order.version() == words_version_) return;
  for (Thread *waiter : word_waiters_) waiter->warp->ready |= 1u << waiter->lane;
  word_waiters_.clear();
}

void Cluster::wait_for_word(Thread &thread, const uint32_t *word, uint32_t value) {
  uint64_t version = 0;
  while (!order.acquire(thread.in_grid(), word, value, version)) {
    wait_at_word(thread, word, version);
  }
}

uint32_t Cluster::poll_word(Thread &thread, const uint32_t *word, uint32_t known) {
  uint64_t version = 0;
  const uint32_t found = order.read(thread.in_grid(), word, version);
  if (found != known) return found;
  thread.polls_word = true;
  wait_at_word(thread, word, version);
  thread.polls_word = false;
  return order.read(thread.in_grid(), word, version);
}

void Cluster::wait_at_word(Thread &thread, const uint32_t *word, uint64_t version) {
  words_version_ = word_waiters_.empty() ? version : std::min(words_version_, version);
  word_waiters_.push_back(&thread);
  thread.waits_for_word = word;
  suspend(thread);
  thread.waits_for_word = nullptr;
}

bool Cluster::end_polls() {
  return std::erase_if(word_waiters_, [](Thread *waiter) {
           if (waiter->polls_word) waiter->warp->ready |= 1u << waiter->lane;
           return waiter->polls_word;
         }) > 0;
}

void Cluster::resume(Warp &warp) {
  self = &warp.threads[std::countr_zero(warp.ready)];
  switch_fiber(scheduler_, self->fiber);
  self = nullptr;
  rethrow_failure();
  if (warp.exited != kAllLanes) return;
  warp_returned();
  Block &block = *warp.threads[0].block;
  if (!block.ended()) return;
  block.finish();
  rethrow_failure();
}

void Cluster::yield(Thread &thread) { switch_fiber(thread.fiber, scheduler_); }

void Cluster::rethrow_failure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

Block &Cluster::peer(const Thread &thread, int rank) const {
  if (rank < 0 || rank >= static_cast<int>(blocks_.size())) {
    throw Problem{thread.lane, "no block of rank " + std::to_string(rank) + ": the cluster has " +
                                   std::to_string(blocks_.size())};
  }
  Block &block = *blocks_[static_cast<size_t>(rank)];
  if (block.ended()) {
    throw Problem{thread.lane, "the block of rank " + std::to_string(rank) +
                                   " has ended, and with it its shared memory"};
  }
  return block;
}

void Cluster::arrive(Warp &warp) {
  clocks.release(warp.index, clock_);
  arrived_.push_back(&warp);
  warp.ready = 0;
  release_all_if_complete();
}

void Cluster::warp_returned() {
  --live_;
  release_all_if_complete();
}

void Cluster::release_all_if_complete() {
  if (arrived_.empty() || arrived_.size() < live_) return;
  for (Warp *warp : arrived_) {
    clocks.acquire(warp->index, clock_);
    warp->ready = kAllLanes;
  }
  arrived_.clear();
  clock_.clear();
}

void Cluster::report_deadlock() {
  const bool several = blocks_.size() > 1;
  std::string text = several ? "deadlock: no thread of the cluster can go on"
                             : "deadlock: no thread of the block can go on";
  const Warp *first = nullptr;
  for (const auto &block : blocks_) {
    if (several) text += "; in the block of rank " + std::to_string(block->rank);
    for (const Warp &warp : block->warps()) {
      if (!first && warp.exited != kAllLanes) first = &warp;
      text += "; " + describe_waiting(warp);
    }
  }
  first->threads[0].block->fail(*first, 0, text);
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace flashsmith::emulator
