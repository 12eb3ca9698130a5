// The split backward of the sm90 family: the arguments and launches of its kernels.
#include <tvm/ffi/error.h>

#include "flashsmith/sm90/split_backward_arguments.cuh"
#include "host/families/sm90_gradients.h"
#include "host/family.h"
#include "host/launch.h"
#include "host/statistics.h"

namespace flashsmith {
namespace {

using Compiled = CompiledKernel<Sm90SplitBackwardKernelConfig>;

class Sm90SplitBackward final : public BackwardKernel {
  Sm90SplitBackwardKernelConfig config_;
  KernelFunction dQ_, dK_dV_;
  StatisticsFunctions statistics_;

  Launch main(KernelFunction function, int tiles_per_head, int64_t heads, int cluster,
              int shared_memory) const {
    return {.function = function,
            .call = call<Sm90BackwardKernelArgs>,
            .grid = {static_cast<unsigned>(tiles_per_head * heads), 1, 1},
            .cluster = static_cast<unsigned>(cluster),
            .threads = static_cast<unsigned>(threads_per_block(config_)),
            .shared_memory_bytes = shared_memory};
  }

  // The following functions return the tiles of a head: blocks of queries, with a tile for each
  // warpgroup; and blocks of keys, in whole clusters.
  int query_tiles(const ForwardProblem &problem) const {
    const int rows = config_.n_warpgroups * config_.B_r;
    return (problem.seq_len_q + rows - 1) / rows;
  }
  int key_tiles(const ForwardProblem &problem) const {
    const int rows = config_.cluster_size * config_.B_c;
    return (problem.seq_len_k + rows - 1) / rows * config_.cluster_size;
  }

 public:
  explicit Sm90SplitBackward(const Compiled &kernel)
      : BackwardKernel(kernel),
        config_(kernel.config),
        dQ_(kernel.functions.at("split_dQ_kernel")),
        dK_dV_(kernel.functions.at("split_dK_dV_kernel")),
        statistics_(kernel.functions) {}

  void check_layout(const BackwardTensors &tensors) const override {
    check_gradient_layout(tensors, variant.varlen);
  }

  Plan plan(const BackwardTensors &tensors, const ForwardProblem &problem, int) const override {
    check_gradient_grid(problem);
    Plan plan{.launches = {}, .workspace_bytes = gradient_workspace_bytes(tensors.forward(), 0)};
    add_statistics<Sm90BackwardKernelArgs>(plan, statistics_, tensors, problem);
    if (!problem.is_empty()) {
      add_launch(plan, main(dQ_, query_tiles(problem), int64_t{problem.n_heads} * problem.batch, 1,
                            dQ_shared_memory_bytes(config_)));
    }
    if (problem.n_heads_kv > 0 && problem.batch > 0) {
      add_launch(plan, main(dK_dV_, key_tiles(problem), int64_t{problem.n_heads_kv} * problem.batch,
                            config_.cluster_size, dK_dV_shared_memory_bytes(config_)));
    }
    return plan;
  }

  KernelArguments arguments(const Plan &, const BackwardTensors &tensors,
                            const ForwardProblem &problem, const Numbers &numbers) const override {
    Sm90BackwardKernelArgs args =
        sm90_gradient_arguments(config_, variant, tensors, problem, numbers, kStatisticsRows, 0);
    const int num_sms = num_sms_of(kind, tensors.forward().q().device());
    const auto group = [&](int tiles, int heads) {
      if (!variant.causal) return 1;
      return heads_that_fill(num_sms, tiles, heads * problem.batch);
    };
    args.heads_per_group = group(key_tiles(problem), problem.n_heads_kv);
    args.query_heads_per_group = group(query_tiles(problem), problem.n_heads);
    return KernelArguments(args);
  }
};

const AddFamily kAdded("Sm90SplitBackwardKernelConfig",
                       make_kernel_of<Sm90SplitBackwardKernelConfig, Sm90SplitBackward>);

}  // namespace
}  // namespace flashsmith
