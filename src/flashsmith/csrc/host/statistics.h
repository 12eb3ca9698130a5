// The launches before a backward's main kernels (attention/row_statistics.cuh) and after them
// (attention/dQ_sums.cuh), and the limits of grids.
#pragma once

#include <tvm/ffi/error.h>

#include <algorithm>

#include "host/args/backward.h"
#include "host/plan.h"

namespace flashsmith {

constexpr int kMaxGridYZ = 65535;

// Checks the grid. Blocks find their rows by three indices.
inline void check_gradient_grid(const ForwardProblem &problem) {
  for (const auto &[dimension, size] :
       {std::pair{"sequences", problem.batch}, {"heads", problem.n_heads}}) {
    if (size > kMaxGridYZ) {
      TVM_FFI_THROW(ValueError) << "q has " << size << " " << dimension
                                << "; the backward takes at most " << kMaxGridYZ
                                << ": split the call";
    }
  }
}

// The functions of every backward beside its main ones.
struct StatisticsFunctions {
  KernelFunction statistics, sinks, conversion;

  explicit StatisticsFunctions(const KernelFunctions &functions)
      : statistics(functions.at("row_statistics_kernel")),
        sinks(functions.find("sink_gradient_kernel")),
        conversion(functions.find("dQ_conversion_kernel")) {}
};

// Adds a launch, which may overlap the one before if that is of the same call: the caller's
// launches may write what they read, from which ptx/dependent_launch.cuh protects nothing.
inline void add_launch(Plan &plan, Launch launch) {
  launch.overlaps = !plan.launches.empty();
  plan.launches.push_back(launch);
}

// Adds the launches of `statistics` and `sinks`, both with arguments `Args`.
template <typename Args>
void add_statistics(Plan &plan, const StatisticsFunctions &functions,
                    const BackwardTensors &tensors, const ForwardProblem &problem) {
  constexpr unsigned kThreads = 128, kWarp = 32;
  const auto heads = static_cast<unsigned>(problem.n_heads);
  // Some keys may belong to no sequence, even if there are no queries.
  const int blocks = std::max((problem.seq_len_q + kStatisticsRows - 1) / kStatisticsRows,
                              tensors.forward().is_varlen() ? 1 : 0);
  if (problem.batch == 0 || problem.n_heads == 0 || blocks == 0) return;
  add_launch(plan,
             {.function = functions.statistics,
              .call = call<Args>,
              .grid = {static_cast<unsigned>(blocks), heads, static_cast<unsigned>(problem.batch)},
              .cluster = 1,
              .threads = kThreads,
              .shared_memory_bytes = 0});
  if (!tensors.dsinks()) return;
  add_launch(plan, {.function = functions.sinks,
                    .call = call<Args>,
                    .grid = {heads, 1, 1},
                    .cluster = 1,
                    .threads = kWarp,
                    .shared_memory_bytes = 0});
}

// Adds the launch that converts dQ from its sums, after the launches that add to them.
//
// n_early: The heads, counted over all batch entries, of which the main kernel converts dQ.
template <typename Args>
void add_conversion(Plan &plan, const StatisticsFunctions &functions, const ForwardProblem &problem,
                    int n_early = 0) {
  if (problem.is_empty()) return;
  constexpr unsigned kThreads = 128;
  const int blocks = (problem.seq_len_q + kStatisticsRows - 1) / kStatisticsRows;
  int heads = problem.n_heads, batch = problem.batch;
  if (n_early > 0) {
    heads = heads * batch - n_early;
    batch = 1;
  }
  add_launch(plan, {.function = functions.conversion,
                    .call = call<Args>,
                    .grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(heads),
                             static_cast<unsigned>(batch)},
                    .cluster = 1,
                    .threads = kThreads,
                    .shared_memory_bytes = 0});
}

}  // namespace flashsmith
