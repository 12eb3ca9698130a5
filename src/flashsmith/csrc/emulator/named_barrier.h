// The block's sixteen execution barriers; barrier_sync uses number 0.
#pragma once

#include <vector>

#include "emulator/clocks.h"

namespace flashsmith::emulator {

class Block;
struct Warp;

class NamedBarriers {
 public:
  static constexpr unsigned kBarriers = 16;

  explicit NamedBarriers(Block &block) : block_(block) {}

  void start_block();
  // Lets one warp's threads arrive; with `wait` the warp proceeds only when `threads` have arrived.
  void arrive(Warp &warp, unsigned id, unsigned threads, bool wait);
  // Returns the first barrier at which threads have arrived that nobody has waited for, or
  // kBarriers.
  unsigned unfinished() const;

 private:
  struct Barrier {
    unsigned expected = 0, arrived = 0;  // threads
    std::vector<Warp *> waiting;
    Clocks::Published clock;
  };
  Block &block_;
  Barrier barriers_[kBarriers];
};

}  // namespace flashsmith::emulator
