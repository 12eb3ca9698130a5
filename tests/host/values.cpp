// Prints, as JSON, what functions of the host side answer that no launch on the emulator asks.
#include <iostream>

#include "flashsmith/hopper/arguments.cuh"
#include "host/capability.h"

using namespace flashsmith;

namespace {

HopperForwardKernelConfig config(int cluster_size, bool persistent, int B_r = 128) {
  HopperForwardKernelConfig cfg{};
  cfg.B_r = B_r, cfg.cluster_size = cluster_size, cfg.persistent = persistent;
  return cfg;
}

// Thread blocks for `tiles` on 1 to 9 multiprocessors.
void print_grids(const char *name, const HopperForwardKernelConfig &cfg, int tiles) {
  std::cout << "\"" << name << "\": [";
  for (int n = 1; n <= 9; n++) std::cout << (n > 1 ? ", " : "") << grid_blocks(cfg, tiles, n);
  std::cout << "],\n";
}

void print_blocks(const char *name, const HopperForwardKernelConfig &cfg) {
  std::cout << "\"" << name << "\": [";
  for (int rows : {1, 127, 128, 129, 256, 257}) {
    std::cout << (rows > 1 ? ", " : "") << Q_blocks(cfg, rows);
  }
  std::cout << "],\n";
}

template <typename Config>
void print_gpus(const char *name) {
  std::cout << "\"" << name << "\": [";
  const char *separator = "";
  for (int major = 7; major <= 12; major++) {
    for (int minor : {0, 5}) {
      if (!runs_on(Config{}, major, minor)) continue;
      std::cout << separator << "\"" << major << "." << minor << "\"";
      separator = ", ";
    }
  }
  std::cout << "]";
}

}  // namespace

int main() {
  std::cout << "{";
  print_grids("one tile a block", config(1, false), 6);
  print_grids("persistent", config(1, true), 6);
  print_grids("clusters of 2", config(2, true), 6);
  print_grids("clusters of 2, one tile a block", config(2, false), 6);
  print_blocks("Q blocks", config(1, true));
  print_blocks("Q blocks in clusters of 2", config(2, true, 64));
  print_gpus<FlashForwardKernelConfig>("sm80");
  std::cout << ",\n";
  print_gpus<HopperForwardKernelConfig>("sm90");
  std::cout << "}\n";
}
