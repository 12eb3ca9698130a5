// The host's interface to run an emulated kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulator/device.h"

namespace flashsmith::emulator {

// A tensor's bytes [base, base + bytes): every global access must fall into one of these.
struct MemoryRange {
  const void *base;
  size_t bytes;
  std::string name;
  bool writable;
};

struct Launch {
  std::string kernel;  // name for messages
  Dim3 grid;
  unsigned threads;  // a multiple of 32
  size_t shared_memory_bytes;
  std::vector<MemoryRange> memory;
  std::function<void()> body;  // the kernel, for one thread
  unsigned cluster = 1;        // blocks of a cluster, along x; divides grid.x
  bool overlaps = false;       // may begin before the previous launch has finished
};

// A synchronisation instruction in the kernel's source.
struct Site {
  std::string kind;  // instruction, by its name in emulator/device.h
  std::string file;  // base name
  unsigned line = 0, column = 0;

  bool operator==(const Site &) const = default;
};

struct Options {
  uint64_t seed = 0;              // draws the order in which warps run
  std::optional<Site> dropped{};  // fault injection: this site of an earlier Report does nothing
  bool count = true;              // counts wavefronts and sectors (slow); false leaves them at 0
  int workers = 0;                // host threads for the grid; 0: one for each core
};

struct Counters {
  uint64_t mma = 0;                      // warp-wide instructions
  uint64_t ldmatrix = 0;                 // warp-wide instructions
  uint64_t longest_ldmatrix_run = 0;     // max ldmatrix that a warp issued between two mma
  uint64_t longest_mma_run = 0;          // max mma that a warp issued between two ldmatrix
  uint64_t cp_async = 0;                 // warp-wide instructions
  uint64_t cp_async_in_flight_mma = 0;   // mma issued while the same warp has copies in flight
  uint64_t shuffles = 0;                 // warp-wide instructions
  uint64_t barriers = 0;                 // completed block barriers
  uint64_t shared_wavefronts = 0;        // cycles the shared memory pipe is busy
  uint64_t shared_wavefronts_ideal = 0;  // the same without bank conflicts
  uint64_t global_load_bytes = 0, global_load_sectors = 0;  // 32-byte sectors
  uint64_t global_store_bytes = 0, global_store_sectors = 0;
  uint64_t wgmma = 0;                          // warpgroup-wide instructions
  uint64_t wgmma_flops = 0;                    // two for each product
  uint64_t wgmma_shared_bytes = 0;             // bytes of shared memory that they read
  uint64_t tma_loads = 0, tma_load_bytes = 0;  // bytes of the boxes
  uint64_t tma_stores = 0, tma_store_bytes = 0;
  uint64_t mbarrier_waits = 0;     // threads that waited for a phase
  uint64_t mbarrier_arrivals = 0;  // threads that arrived, at the barriers of any block
  uint64_t named_barriers = 0;     // completed, except number 0

  void add(const Counters &other);  // adds counts; takes the max of the longest runs
};

struct Report {
  Counters counters;
  std::vector<Site> sites;  // every synchronisation site that ran, sorted by file, line, column
};

// A broken rule: a race, a read of bytes in flight, a bad address or alignment, a deadlock, or
// divergence. what() names kernel, block, thread, and address or site.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs the whole grid. Throws the Fault of the first block (in grid order) that has one, and
// std::invalid_argument for a launch that no GPU would accept or a dropped site that never ran.
Report launch(const Launch &launch, const Options &options);

// Runs grids one after the other; the report covers all of them.
Report launch(std::span<const Launch> launches, const Options &options);

}  // namespace flashsmith::emulator
