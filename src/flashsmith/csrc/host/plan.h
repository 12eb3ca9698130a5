// The plan of one call: its launches in order, and the memory that they share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "host/module.h"

namespace flashsmith {

struct Grid {
  unsigned x, y, z;
};

// The argument of a kernel: a family's struct, as bytes.
class KernelArguments {
  static constexpr size_t kMax = 1536, kAlignment = 128;  // as tensor maps require
  alignas(kAlignment) std::array<std::byte, kMax> bytes_;

 public:
  template <typename Args>
  explicit KernelArguments(const Args &args) {
    static_assert(sizeof(Args) <= kMax && alignof(Args) <= kAlignment, "the arguments have room");
    static_assert(std::is_trivially_copyable_v<Args>, "the arguments are bytes");
    std::memcpy(bytes_.data(), &args, sizeof(Args));
  }
  const void *get() const { return bytes_.data(); }
};

// Calls a kernel that takes `Args`; on the emulator, for one thread.
template <typename Args>
void call(const void *function, const KernelArguments &arguments) {
  reinterpret_cast<void (*)(const Args)>(const_cast<void *>(function))(
      *static_cast<const Args *>(arguments.get()));
}

struct Launch {
  KernelFunction function;
  void (*call)(const void *function, const KernelArguments &arguments);
  Grid grid;
  unsigned cluster;  // blocks of a cluster, along x
  unsigned threads;  // of a block
  int shared_memory_bytes;
  bool overlaps = false;  // may begin before the previous launch has finished, and waits for it
};

struct Plan {
  std::vector<Launch> launches;
  int64_t workspace_bytes = 0;
  int64_t zeroed_bytes = 0;   // leading bytes of the workspace that are zero before and after calls
  int64_t counter_bytes = 0;  // bytes of separate memory that are zero before and after calls
  int n_parts = 1;            // of each group of query heads, in a backward that splits groups
  int n_early = 0;            // heads of which a backward's main kernel converts dQ
  bool has_table = false;     // whether a launch lists a backward's tiles of keys
};

}  // namespace flashsmith
