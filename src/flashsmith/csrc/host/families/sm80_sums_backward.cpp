// The sums backward of the sm80 family: the arguments and launches of its kernels.
#include <tvm/ffi/error.h>

#include "flashsmith/sm80/sums_backward_arguments.cuh"
#include "host/families/sm80_gradients.h"
#include "host/family.h"
#include "host/statistics.h"

namespace flashsmith {
namespace {

using Compiled = CompiledKernel<Sm80SumsBackwardKernelConfig>;

class Sm80SumsBackward final : public BackwardKernel {
  Sm80SumsBackwardKernelConfig config_;
  KernelFunction main_;
  StatisticsFunctions statistics_;

  Launch main(const ForwardProblem &problem) const {
    const int blocks = (problem.seq_len_k + config_.B_c - 1) / config_.B_c;
    return {.function = main_,
            .call = call<BackwardKernelArgs>,
            .grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(problem.n_heads_kv),
                     static_cast<unsigned>(problem.batch)},
            .cluster = 1,
            .threads = static_cast<unsigned>(threads_per_block(config_)),
            .shared_memory_bytes = shared_memory_bytes(config_)};
  }

 public:
  explicit Sm80SumsBackward(const Compiled &kernel)
      : BackwardKernel(kernel),
        config_(kernel.config),
        main_(kernel.functions.at("sums_backward_kernel")),
        statistics_(kernel.functions) {}

  Plan plan(const BackwardTensors &tensors, const ForwardProblem &problem, int) const override {
    check_gradient_grid(problem);
    Plan plan{.workspace_bytes = gradient_workspace_bytes(tensors.forward(), config_.d_head)};
    add_statistics<BackwardKernelArgs>(plan, statistics_, tensors, problem);
    if (problem.n_heads_kv > 0 && problem.batch > 0) add_launch(plan, main(problem));
    add_conversion<BackwardKernelArgs>(plan, statistics_, problem);
    return plan;
  }

  KernelArguments arguments(const Plan &, const BackwardTensors &tensors,
                            const ForwardProblem &problem, const Numbers &numbers) const override {
    return KernelArguments(
        sm80_gradient_arguments(variant, tensors, problem, numbers, config_.d_head));
  }
};

const AddFamily kAdded("Sm80SumsBackwardKernelConfig",
                       make_kernel_of<Sm80SumsBackwardKernelConfig, Sm80SumsBackward>);

}  // namespace
}  // namespace flashsmith
