// The asynchronous matrix instructions of a warpgroup, from their issue to the waits of its warps.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "emulator/clocks.h"
#include "emulator/device.h"

namespace flashsmith::emulator {

constexpr unsigned kLanes = 32;
constexpr uint32_t kAllLanes = ~0u;
constexpr unsigned kWarpgroupWarps = 4;

class Block;
struct Warp;

// The four warps issue the same instructions, each at its own pace. The instructions are executed
// in order, when the first warp waits for them; each warp's registers change at its own wait.
class Warpgroup {
 public:
  Warpgroup(Block &block, unsigned index) : block_(block), index_(index) {}

  void start_block();
  void issue(Warp &warp, const Wgmma *const *lanes);
  void fence(Warp &warp) { progress_of(warp).fenced = true; }
  void commit(Warp &warp);
  bool wait(Warp &warp, unsigned pending);  // false: other warps have not yet issued what it covers
  bool in_flight(const Warp &warp) const;

 private:
  // Registers that are accumulators of instructions in flight. They hold poison.
  struct Accumulators {
    float *registers[kWarpgroupWarps][kLanes] = {};
    unsigned pending[kWarpgroupWarps] = {};  // instructions in flight that use the warp's registers
    int n;
    std::vector<float> values;  // (64, n)

    Accumulators(int n, size_t count) : n(n), values(count) {}
    void take(unsigned warp, const Wgmma *const *lanes);
    void give_back(unsigned warp);
  };

  struct Operation {
    Wgmma shape;
    Clocks::Published ordered{};  // what all four warps had seen when they issued it
    std::shared_ptr<Accumulators> accumulators{};
    const uint32_t *a_registers[kWarpgroupWarps][kLanes] = {};
    uint32_t a[kWarpgroupWarps][kLanes][4] = {};
    unsigned issued = 0, waited = 0;  // by how many warps
    bool executed = false;
    uint32_t epoch = 0;  // of its reads
  };

  struct Progress {
    uint64_t issued = 0, waited = 0;  // instructions
    std::deque<uint64_t> groups{};    // instructions issued at each commit that was not waited for
    bool fenced = false;              // since the kernel last used the registers
  };

  Progress &progress_of(const Warp &warp);
  Operation &next_operation(unsigned warp, const Wgmma &shape);
  std::shared_ptr<Accumulators> find_accumulators(unsigned warp, const Wgmma &shape);
  void execute(Operation &operation, uint32_t epoch, unsigned warp);
  void retire(Operation &operation, unsigned warp);

  Block &block_;
  unsigned index_;
  std::deque<Operation> operations_;  // from number first_ on
  uint64_t first_ = 0;
  std::vector<std::shared_ptr<Accumulators>> accumulators_;
  Progress progress_[kWarpgroupWarps];
};

}  // namespace flashsmith::emulator
