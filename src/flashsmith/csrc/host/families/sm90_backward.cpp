// The backward of the sm90 family: the arguments and launches of its kernels.
#include <tvm/ffi/error.h>

#include <algorithm>

#include "flashsmith/sm90/backward_arguments.cuh"
#include "host/families/sm90_gradients.h"
#include "host/family.h"
#include "host/launch.h"
#include "host/statistics.h"

namespace flashsmith {
namespace {

using Compiled = CompiledKernel<Sm90BackwardKernelConfig>;

class Sm90Backward final : public BackwardKernel {
  Sm90BackwardKernelConfig config_;
  KernelFunction main_;
  StatisticsFunctions statistics_;

  // Returns whether the workspace has a queue, behind what every backward has there. The launch of
  // the statistics, which exists if there are queries, clears it.
  bool has_queue(const ForwardProblem &problem) const {
    return n_tile_entries(config_) > 0 && !problem.is_empty();
  }
  int64_t gradient_bytes(const BackwardTensors &tensors) const {
    return gradient_workspace_bytes(tensors.forward(), config_.d_head);
  }
  // Returns the number of counters of added sums, which are behind the queue.
  int64_t n_turns(const BackwardTensors &tensors) const {
    if (!config_.dQ_in_order) return 0;
    const ForwardTensors forward = tensors.forward();
    return all_statistics_blocks(forward) * forward.q().size(kHead) * dQ_parts(config_);
  }
  uint32_t *queue(const BackwardTensors &tensors) const {
    char *workspace = static_cast<char *>(tensors.workspace()->data_ptr());
    return reinterpret_cast<uint32_t *>(workspace + gradient_bytes(tensors));
  }

  // Returns the number of heads of K in all batch entries.
  static int heads_of_k(const ForwardProblem &problem) {
    return problem.n_heads_kv * problem.batch;
  }
  int blocks_per_head(const ForwardProblem &problem) const {
    return (problem.seq_len_k + config_.B_c - 1) / config_.B_c;
  }

  // Returns the heads of K in a group. If blocks of keys add in order, the blocks of a head wait
  // for each other less, the more heads there are.
  int heads_per_group(const ForwardProblem &problem, int num_sms) const {
    constexpr int kMinWithTurns = 8;
    if (!variant.causal && !config_.dQ_in_order) return 1;
    return heads_that_fill(num_sms, blocks_per_head(problem), heads_of_k(problem),
                           config_.dQ_in_order ? kMinWithTurns : 1);
  }

  // Returns the launch over blocks of keys.
  Launch main(const ForwardProblem &problem, int num_sms) const {
    const int64_t n_tiles = static_cast<int64_t>(blocks_per_head(problem)) * heads_of_k(problem);
    const int64_t n_blocks = config_.persistent ? std::min<int64_t>(n_tiles, num_sms) : n_tiles;
    return {.function = main_,
            .call = call<Sm90BackwardKernelArgs>,
            .grid = {static_cast<unsigned>(n_blocks), 1, 1},
            .cluster = 1,
            .threads = static_cast<unsigned>(threads_per_block(config_)),
            .shared_memory_bytes = shared_memory_bytes(config_)};
  }

 public:
  explicit Sm90Backward(const Compiled &kernel)
      : BackwardKernel(kernel),
        config_(kernel.config),
        main_(kernel.functions.at("backward_kernel")),
        statistics_(kernel.functions) {}

  void check_layout(const BackwardTensors &tensors) const override {
    check_gradient_layout(tensors, variant.varlen);
  }

  Plan plan(const BackwardTensors &tensors, const ForwardProblem &problem,
            int num_sms) const override {
    check_gradient_grid(problem);
    Plan plan{.launches = {}, .workspace_bytes = gradient_bytes(tensors)};
    if (has_queue(problem)) plan.workspace_bytes += (1 + n_turns(tensors)) * sizeof(uint32_t);
    add_statistics<Sm90BackwardKernelArgs>(plan, statistics_, tensors, problem);
    if (problem.n_heads_kv > 0 && problem.batch > 0) {
      plan.launches.push_back(main(problem, num_sms));
    }
    if (statistics_.conversion) {
      add_conversion<Sm90BackwardKernelArgs>(plan, statistics_, problem);
    }
    return plan;
  }

  KernelArguments arguments(const BackwardTensors &tensors, const ForwardProblem &problem,
                            const Numbers &numbers) const override {
    Sm90BackwardKernelArgs args = sm90_gradient_arguments(config_, variant, tensors, problem,
                                                          numbers, config_.B_c, config_.d_head);
    if (has_queue(problem)) {
      args.gradient.queue = queue(tensors);
      args.gradient.summed = queue(tensors) + 1;
    }
    args.heads_per_group =
        heads_per_group(problem, num_sms_of(kind, tensors.forward().q().device()));
    return KernelArguments(args);
  }
};

const AddFamily kAdded("Sm90BackwardKernelConfig",
                       make_kernel_of<Sm90BackwardKernelConfig, Sm90Backward>);

}  // namespace
}  // namespace flashsmith
