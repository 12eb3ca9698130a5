// The block's sixteen execution barriers; number 0 is barrier_sync's.
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
  // One warp's threads arrive, and with `wait` it goes on only when `threads` have.
  void arrive(Warp &warp, unsigned id, unsigned threads, bool wait);
  // The first at which threads have arrived that nobody has waited for; or kBarriers.
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
