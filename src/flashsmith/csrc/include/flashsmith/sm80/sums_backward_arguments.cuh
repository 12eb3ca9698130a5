// The sums backward of the sm80 family as host and device see it: configuration and launch sizes.
// backward_arguments.cuh has its kernel arguments.
#pragma once

#include "flashsmith/sm80/backward_arguments.cuh"

namespace flashsmith {

// One point of the configuration space of the sm80 family's sums backward, which accumulates dQ in
// memory. The fields, in this order, are those of the Python class of this name, and are described
// in docs/knobs.md.
struct Sm80SumsBackwardKernelConfig {
  ScalarType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warps;
  int n_stages;
  int column_groups;

  constexpr auto operator<=>(const Sm80SumsBackwardKernelConfig &) const = default;
};

// The kernels of one call, in the order of their launches. `sinks` is null if the variant has none.
struct Sm80SumsBackwardKernels {
  backward_kernel_fn statistics, sinks, main, conversion;
};

constexpr int threads_per_block(const Sm80SumsBackwardKernelConfig &cfg) {
  return cfg.n_warps * kWarpSize;
}

// Returns whether warps exchange weights through shared memory, as they do dS.
constexpr bool shares_weights(const Sm80SumsBackwardKernelConfig &cfg) {
  return cfg.column_groups > 1;
}

constexpr int kDSBuffersOfSums = 2;  // one is read while the next tile's dS is written

constexpr int score_buffers(const Sm80SumsBackwardKernelConfig &cfg) {
  return kDSBuffersOfSums + (shares_weights(cfg) ? 1 : 0);
}

// The padding of a row in shared memory, and the elements of a row of `columns` columns.
constexpr int kRowPadding = 8;
constexpr int row_elements(int columns) { return columns + kRowPadding; }

// Shared memory holds a tile of K and one of V, Q and dO with statistics in every stage, and
// scores.
constexpr int shared_memory_bytes(const Sm80SumsBackwardKernelConfig &cfg) {
  constexpr int kElementBytes = 2, kStatisticsBytes = 8;  // of an element, and of a row
  const int rows = 2 * cfg.B_c + cfg.n_stages * 2 * cfg.B_r;
  const int elements =
      rows * row_elements(cfg.d_head) + score_buffers(cfg) * cfg.B_c * row_elements(cfg.B_r);
  return elements * kElementBytes + cfg.n_stages * cfg.B_r * kStatisticsBytes;
}

}  // namespace flashsmith
