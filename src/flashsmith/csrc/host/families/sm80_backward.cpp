// The backward of the sm80 family: the arguments and launches of its kernels.
#include <tvm/ffi/error.h>

#include <memory>

#include "host/families/sm80_gradients.h"
#include "host/look_up.h"
#include "host/statistics.h"

namespace flashsmith {
namespace {

using Named = NamedKernel<FlashBackwardKernelConfig, FlashBackwardKernels>;

class Sm80Backward final : public BackwardKernel {
  FlashBackwardKernelConfig config_;
  FlashBackwardKernels kernels_;

  Launch main(const char *name, backward_kernel_fn kernel, int rows, int heads, int batch) const {
    return {.kernel = name,
            .function = reinterpret_cast<const void *>(kernel),
            .call = call<BackwardKernelArgs>,
            .grid = {static_cast<unsigned>((rows + config_.B_r - 1) / config_.B_r),
                     static_cast<unsigned>(heads), static_cast<unsigned>(batch)},
            .cluster = 1,
            .threads = static_cast<unsigned>(threads_per_block(config_)),
            .shared_memory_bytes = shared_memory_bytes(config_)};
  }

 public:
  Sm80Backward(const Named &kernel, const FamilyGpus &gpus)
      : BackwardKernel(kernel, gpus), config_(kernel.config), kernels_(kernel.function) {}

  Plan plan(const BackwardTensors &tensors, const ForwardProblem &problem, int) const override {
    check_gradient_grid(problem);
    Plan plan{.workspace_bytes = gradient_workspace_bytes(tensors.forward(), 0)};
    const int heads = problem.n_heads, heads_kv = problem.n_heads_kv, batch = problem.batch;
    add_statistics<BackwardKernelArgs>(plan, kernels_, tensors, problem);
    if (!problem.is_empty()) {
      plan.launches.push_back(main("dQ_kernel", kernels_.dQ, problem.seq_len_q, heads, batch));
    }
    for (const auto &[name, kernel] : {std::pair{"dK_dV_kernel", kernels_.dK_dV},
                                       {"dK_kernel", kernels_.dK},
                                       {"dV_kernel", kernels_.dV}}) {
      if (!kernel || heads_kv == 0 || batch == 0) continue;
      plan.launches.push_back(main(name, kernel, problem.seq_len_k, heads_kv, batch));
    }
    return plan;
  }

  KernelArguments arguments(const BackwardTensors &tensors, const ForwardProblem &problem,
                            const Numbers &numbers) const override {
    return KernelArguments(sm80_gradient_arguments(variant, tensors, problem, numbers, 0));
  }
};

}  // namespace

std::unique_ptr<Kernel> make_kernel(const Named &kernel, const FamilyGpus &gpus) {
  return std::make_unique<Sm80Backward>(kernel, gpus);
}

template FoundKernel find_in<Named>(const KernelMap &, std::string_view, Fields, const Variant &);

}  // namespace flashsmith
