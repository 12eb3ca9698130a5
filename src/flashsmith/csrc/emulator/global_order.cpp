#include "emulator/global_order.h"

#include <algorithm>
#include <atomic>

namespace flashsmith::emulator {

namespace {

const char *name(GlobalOrder::Use use) {
  switch (use) {
    case GlobalOrder::Use::load:
      return "bulk_load";
    case GlobalOrder::Use::store:
      return "bulk_store";
    case GlobalOrder::Use::add:
      break;
  }
  return "bulk_add";
}

}  // namespace

void GlobalOrder::merge(Clock &into, const Clock &other) {
  for (const auto &[thread, copy] : other) into[thread] = std::max(into[thread], copy);
}

bool GlobalOrder::knows(const Clock &clock, const Copy &copy) {
  const auto found = clock.find(copy.thread);
  return found != clock.end() && found->second >= copy.number;
}

bool GlobalOrder::conflicts(Use one, Use other) { return one == Use::store || one != other; }

void GlobalOrder::check(const Thread &by, uintptr_t begin, uintptr_t end, Use use,
                        std::string &conflict) {
  auto range = ranges_.lower_bound(begin - std::min(begin, longest_));
  for (; range != ranges_.end() && range->first < end; ++range) {
    if (range->second.end <= begin) continue;
    for (const Copy &copy : range->second.copies) {
      if (!conflicts(use, copy.use) || knows(by.fenced, copy)) continue;
      conflict = "race: not ordered after " + std::string(name(copy.use)) +
                 " of the same bytes in global memory: needs a wait for that, a word that hands it "
                 "on, and a fence_proxy_async_global";
      return;
    }
  }
}

uint64_t GlobalOrder::begin(uint64_t thread, const void *bytes, size_t size, Use use,
                            std::string &conflict) {
  const std::lock_guard lock(mutex_);
  Thread &by = threads_[thread];
  const auto first = reinterpret_cast<uintptr_t>(bytes), end = first + size;
  check(by, first, end, use, conflict);
  const uint64_t number = ++by.copies;
  if (use == Use::load) return number;
  Range &range = ranges_.try_emplace(first, Range{end, {}}).first->second;
  range.end = std::max(range.end, end);
  longest_ = std::max(longest_, range.end - first);
  // Drops copies of the same kind that this thread knows: whoever knows the new copy knows them,
  // too.
  std::erase_if(range.copies,
                [&](const Copy &copy) { return copy.use == use && knows(by.fenced, copy); });
  range.copies.push_back({thread, number, use});
  return number;
}

void GlobalOrder::complete(uint64_t thread, uint64_t copy) {
  const std::lock_guard lock(mutex_);
  Thread &by = threads_[thread];
  // Completion includes a fence for the thread's own copies.
  by.known[thread] = by.fenced[thread] = std::max(by.known[thread], copy);
}

void GlobalOrder::fence(uint64_t thread) {
  const std::lock_guard lock(mutex_);
  Thread &by = threads_[thread];
  merge(by.fenced, by.known);
}

void GlobalOrder::release(uint64_t thread, uint32_t *word, uint32_t value) {
  const std::lock_guard lock(mutex_);
  // A thread that reads this value learns nothing from the writers of other values.
  words_[word] = threads_[thread].known;
  std::atomic_ref(*word).store(value, std::memory_order_release);
  has_written();
}

uint32_t GlobalOrder::arrive(uint64_t thread, uint32_t *word, uint32_t amount) {
  const std::lock_guard lock(mutex_);
  Clock &known = threads_[thread].known, &handed_on = words_[word];
  merge(known, handed_on);
  handed_on = known;
  const uint32_t before = std::atomic_ref(*word).fetch_add(amount, std::memory_order_acq_rel);
  has_written();
  return before;
}

uint32_t GlobalOrder::replace(uint64_t thread, uint32_t *word, uint32_t expected, uint32_t value) {
  const std::lock_guard lock(mutex_);
  Clock &known = threads_[thread].known, &handed_on = words_[word];
  merge(known, handed_on);
  uint32_t before = expected;
  if (std::atomic_ref(*word).compare_exchange_strong(before, value)) {
    handed_on = known;
    has_written();
  }
  return before;
}

uint32_t GlobalOrder::read(uint64_t thread, const uint32_t *word, uint64_t &version) {
  const std::lock_guard lock(mutex_);
  version = version_;
  if (const auto found = words_.find(word); found != words_.end()) {
    merge(threads_[thread].known, found->second);
  }
  return std::atomic_ref(*const_cast<uint32_t *>(word)).load(std::memory_order_acquire);
}

bool GlobalOrder::acquire(uint64_t thread, const uint32_t *word, uint32_t value,
                          uint64_t &version) {
  const std::lock_guard lock(mutex_);
  version = version_;
  if (std::atomic_ref(*const_cast<uint32_t *>(word)).load(std::memory_order_acquire) != value) {
    return false;
  }
  if (const auto found = words_.find(word); found != words_.end()) {
    merge(threads_[thread].known, found->second);
  }
  return true;
}

uint64_t GlobalOrder::version() {
  const std::lock_guard lock(mutex_);
  return version_;
}

bool GlobalOrder::wait_beyond(uint64_t version, bool polls) {
  std::unique_lock lock(mutex_);
  if (version_ != version) return true;
  ++waiting_;
  if (polls) ++polling_;
  stop_if_stuck();
  written_.wait(
      lock, [&] { return version_ != version || stuck_ || abandoned_ || (polls && polls_end_); });
  if (abandoned_) throw Abandoned{};
  if (version_ != version) return true;
  if (polls) {  // goes on
    --waiting_;
    polls_end_ = --polling_ > 0;
  }
  return false;
}

void GlobalOrder::worker_ended() {
  const std::lock_guard lock(mutex_);
  --running_;
  stop_if_stuck();
}

void GlobalOrder::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  written_.notify_all();
}

void GlobalOrder::has_written() {
  ++version_;
  waiting_ = polling_ = 0;
  polls_end_ = false;
  written_.notify_all();
}

void GlobalOrder::stop_if_stuck() {
  if (waiting_ == 0 || waiting_ < running_) return;
  (polling_ > 0 ? polls_end_ : stuck_) = true;
  written_.notify_all();
}

}  // namespace flashsmith::emulator
