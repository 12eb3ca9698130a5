// The sums backward of the sm80 family: the arguments and launches of its kernels.
#include <tvm/ffi/error.h>

#include <memory>

#include "flashsmith/sm80/sums_backward_arguments.cuh"
#include "host/families/sm80_gradients.h"
#include "host/look_up.h"
#include "host/statistics.h"

namespace flashsmith {
namespace {

using Named = NamedKernel<Sm80SumsBackwardKernelConfig, Sm80SumsBackwardKernels>;

class Sm80SumsBackward final : public BackwardKernel {
  Sm80SumsBackwardKernelConfig config_;
  Sm80SumsBackwardKernels kernels_;

  Launch main(const ForwardProblem &problem) const {
    const int blocks = (problem.seq_len_k + config_.B_c - 1) / config_.B_c;
    return {.kernel = "sums_backward_kernel",
            .function = reinterpret_cast<const void *>(kernels_.main),
            .call = call<BackwardKernelArgs>,
            .grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(problem.n_heads_kv),
                     static_cast<unsigned>(problem.batch)},
            .cluster = 1,
            .threads = static_cast<unsigned>(threads_per_block(config_)),
            .shared_memory_bytes = shared_memory_bytes(config_)};
  }

 public:
  Sm80SumsBackward(const Named &kernel, const FamilyGpus &gpus)
      : BackwardKernel(kernel, gpus), config_(kernel.config), kernels_(kernel.function) {}

  Plan plan(const BackwardTensors &tensors, const ForwardProblem &problem, int) const override {
    check_gradient_grid(problem);
    Plan plan{.workspace_bytes = gradient_workspace_bytes(tensors.forward(), config_.d_head)};
    add_statistics<BackwardKernelArgs>(plan, kernels_, tensors, problem);
    if (problem.n_heads_kv > 0 && problem.batch > 0) plan.launches.push_back(main(problem));
    add_conversion<BackwardKernelArgs>(plan, kernels_.conversion, problem);
    return plan;
  }

  KernelArguments arguments(const BackwardTensors &tensors, const ForwardProblem &problem,
                            const Numbers &numbers) const override {
    return KernelArguments(
        sm80_gradient_arguments(variant, tensors, problem, numbers, config_.d_head));
  }
};

}  // namespace

std::unique_ptr<Kernel> make_kernel(const Named &kernel, const FamilyGpus &gpus) {
  return std::make_unique<Sm80SumsBackward>(kernel, gpus);
}

template FoundKernel find_in<Named>(const KernelMap &, std::string_view, Fields, const Variant &);

}  // namespace flashsmith
