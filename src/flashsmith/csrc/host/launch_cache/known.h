// The launchers of earlier calls, by the keys of the calls.
#pragma once

#include <tvm/ffi/any.h>
#include <tvm/ffi/function.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "host/launch_cache/call_key.h"
#include "host/workspace.h"

namespace flashsmith {

// The memory that a call needs beside its tensors, and the number of the stream that it belongs to.
struct Memory {
  int64_t stream = 0;
  tvm::ffi::Any workspace, counters;  // a tensor, or None
};

// Returns the number of the calling thread, which no other thread of the process ever has.
inline int64_t this_thread() {
  static std::atomic<int64_t> next{0};
  thread_local const int64_t own = next++;
  return own;
}

// The memory of the threads that made a call lately, each on a stream. Dropped memory is destroyed
// outside of the lock, because a tensor may be Python's.
class KeptMemory {
  static constexpr size_t kMaxKept = 8;
  struct Kept {
    int64_t thread;
    Memory memory;
  };

  mutable std::mutex mutex_;
  std::array<std::optional<Kept>, kMaxKept> kept_;
  size_t next_ = 0;

 public:
  // Returns this thread's memory on a stream; its members are None if nothing was kept.
  Memory find(int64_t stream) const {
    const std::lock_guard lock(mutex_);
    for (const std::optional<Kept> &each : kept_) {
      if (each && each->memory.stream == stream && each->thread == this_thread()) {
        return each->memory;
      }
    }
    return {.stream = stream, .workspace = {}, .counters = {}};
  }

  void keep(Memory memory) {
    std::optional<Kept> own{Kept{this_thread(), std::move(memory)}};
    const std::lock_guard lock(mutex_);
    for (std::optional<Kept> &each : kept_) {
      if (each && each->thread == own->thread && each->memory.stream == own->memory.stream) {
        return each.swap(own);
      }
    }
    kept_[next_++ % kMaxKept].swap(own);
  }

  void drop_thread(int64_t thread) {
    decltype(kept_) dropped;
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < kMaxKept; i++) {
      if (kept_[i] && kept_[i]->thread == thread) kept_[i].swap(dropped[i]);
    }
  }
};

// The arguments by which Python describes how a call was made; the arguments of the call follow.
enum Making : int { kCall, kOwner, kBySplitKv, kStream, kWorkspace, kCounters, kOfMaking };

// The way to make all calls with one key.
struct Launcher {
  tvm::ffi::Function call;   // the function that `bind` of an operation returned
  tvm::ffi::Any owner;       // its address is in the key, so it has to live as long as the key
  bool by_split_kv = false;  // `call` belongs to a kernel of `decode`
  DLDataType o_dtype{};
  KeptMemory memory;

  Memory memory_on(DLDevice device) const { return memory.find(current_stream_number(device)); }
};

// The launchers of one operation. The map is bounded: it is emptied when it is full.
class KnownLaunchers {
  static constexpr size_t kMaxKnown = 4096;
  struct Hash {
    size_t operator()(const CallKey &key) const { return key.hash(); }
  };
  using Map = std::unordered_map<CallKey, std::shared_ptr<Launcher>, Hash>;

  mutable std::shared_mutex mutex_;
  Map known_;

 public:
  // Returns null if no call with this key was made.
  std::shared_ptr<Launcher> find(const CallKey &key) const {
    const std::shared_lock lock(mutex_);
    const auto found = known_.find(key);
    return found == known_.end() ? nullptr : found->second;
  }

  void keep(const CallKey &key, std::shared_ptr<Launcher> launcher) {
    Map dropped;  // destroyed outside of the lock, because members of launchers may call Python
    std::shared_ptr<Launcher> replaced;
    const std::unique_lock lock(mutex_);
    if (known_.size() >= kMaxKnown) dropped.swap(known_);
    replaced = std::exchange(known_[key], std::move(launcher));
  }

  // Keeps how a call was made, `making`, for the calls with its key.
  void remember(const CallKey &key, tvm::ffi::PackedArgs making, DLDataType o_dtype = {}) {
    std::shared_ptr<Launcher> launcher = find(key);
    const auto call = making[kCall].cast<tvm::ffi::Function>();
    if (!launcher || !launcher->call.same_as(call)) {
      launcher = std::make_shared<Launcher>();
      launcher->call = call;
      launcher->owner = making[kOwner];
      launcher->by_split_kv = making[kBySplitKv].cast<bool>();
      launcher->o_dtype = o_dtype;
      keep(key, launcher);
    }
    launcher->memory.keep({.stream = making[kStream].cast<int64_t>(),
                           .workspace = making[kWorkspace],
                           .counters = making[kCounters]});
  }

  // Drops the memory that is kept for a thread that has ended.
  void drop_thread(int64_t thread) {
    Map all;  // a copy, so that nothing is destroyed under the lock
    {
      const std::shared_lock lock(mutex_);
      all = known_;
    }
    for (const auto &[key, launcher] : all) launcher->memory.drop_thread(thread);
  }

  void forget() {
    Map dropped;
    const std::unique_lock lock(mutex_);
    dropped.swap(known_);
  }
};

}  // namespace flashsmith
