// The backward of the sm80 family: the arguments and launches of its kernels.
#include <tvm/ffi/error.h>

#include "host/families/sm80_gradients.h"
#include "host/family.h"
#include "host/statistics.h"

namespace flashsmith {
namespace {

using Compiled = CompiledKernel<FlashBackwardKernelConfig>;

class Sm80Backward final : public BackwardKernel {
  FlashBackwardKernelConfig config_;
  KernelFunction dQ_, dK_dV_, dK_, dV_;  // dK_dV_, or dK_ and dV_
  StatisticsFunctions statistics_;

  Launch main(KernelFunction function, int rows, int heads, int batch) const {
    return {.function = function,
            .call = call<BackwardKernelArgs>,
            .grid = {static_cast<unsigned>((rows + config_.B_r - 1) / config_.B_r),
                     static_cast<unsigned>(heads), static_cast<unsigned>(batch)},
            .cluster = 1,
            .threads = static_cast<unsigned>(threads_per_block(config_)),
            .shared_memory_bytes = shared_memory_bytes(config_)};
  }

 public:
  explicit Sm80Backward(const Compiled &kernel)
      : BackwardKernel(kernel),
        config_(kernel.config),
        dQ_(kernel.functions.at("dQ_kernel")),
        dK_dV_(kernel.functions.find("dK_dV_kernel")),
        dK_(kernel.functions.find("dK_kernel")),
        dV_(kernel.functions.find("dV_kernel")),
        statistics_(kernel.functions) {}

  Plan plan(const BackwardTensors &tensors, const ForwardProblem &problem, int) const override {
    check_gradient_grid(problem);
    Plan plan{.workspace_bytes = gradient_workspace_bytes(tensors.forward(), 0)};
    const int heads = problem.n_heads, heads_kv = problem.n_heads_kv, batch = problem.batch;
    add_statistics<BackwardKernelArgs>(plan, statistics_, tensors, problem);
    if (!problem.is_empty()) {
      add_launch(plan, main(dQ_, problem.seq_len_q, heads, batch));
    }
    for (const KernelFunction &function : {dK_dV_, dK_, dV_}) {
      if (!function || heads_kv == 0 || batch == 0) continue;
      add_launch(plan, main(function, problem.seq_len_k, heads_kv, batch));
    }
    return plan;
  }

  KernelArguments arguments(const Plan &, const BackwardTensors &tensors,
                            const ForwardProblem &problem, const Numbers &numbers) const override {
    return KernelArguments(sm80_gradient_arguments(variant, tensors, problem, numbers, 0));
  }
};

const AddFamily kAdded("FlashBackwardKernelConfig",
                       make_kernel_of<FlashBackwardKernelConfig, Sm80Backward>);

}  // namespace
}  // namespace flashsmith
