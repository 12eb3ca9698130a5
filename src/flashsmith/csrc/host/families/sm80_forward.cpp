// The forward of the sm80 family: the arguments and launches of its kernels.
#include <tvm/ffi/error.h>

#include "flashsmith/flash_attention.cuh"
#include "host/family.h"
#include "host/forward_kernel.h"
#include "host/schedule.h"

namespace flashsmith {
namespace {

// Checks a size of the grid. Blocks find their tile by three indices, because divisions would delay
// their first load.
void check_grid(const char *dimension, int size) {
  constexpr int kMaxGridYZ = 65535;
  if (size > kMaxGridYZ) {
    TVM_FFI_THROW(ValueError) << "q has " << size << " " << dimension
                              << "; the sm80 family takes at most " << kMaxGridYZ
                              << ": split the call";
  }
}

using Compiled = CompiledKernel<FlashForwardKernelConfig>;

class Sm80Forward final : public ForwardKernel {
  FlashForwardKernelConfig config_;
  KernelFunction function_, schedule_;  // schedule_: of varlen variants

  int n_Q_blocks(const ForwardProblem &problem) const {
    return (problem.seq_len_q + config_.B_r - 1) / config_.B_r;
  }

  Grid grid(const ForwardProblem &problem) const {
    const auto n_heads = static_cast<unsigned>(problem.n_heads);
    if (variant.varlen) {
      return {static_cast<unsigned>(problem.max_Q_blocks(config_.B_r)), n_heads, 1};
    }
    return {static_cast<unsigned>(n_Q_blocks(problem)), n_heads,
            static_cast<unsigned>(problem.batch)};
  }

 public:
  explicit Sm80Forward(const Compiled &kernel)
      : ForwardKernel(kernel),
        config_(kernel.config),
        function_(kernel.functions.at("flash_forward_kernel")),
        schedule_(kernel.functions.find("schedule_kernel")) {}

  Plan plan(const ForwardProblem &problem, int num_sms) const override {
    if (!variant.varlen) check_grid("sequences", problem.batch);
    check_grid("heads", problem.n_heads);
    const Launch main{.function = function_,
                      .call = call<ForwardKernelArgs>,
                      .grid = grid(problem),
                      .cluster = 1,
                      .threads = static_cast<unsigned>(threads_per_block(config_)),
                      .shared_memory_bytes = shared_memory_bytes(config_)};
    const int64_t n_tiles = static_cast<int64_t>(main.grid.x) * main.grid.y;
    if (!variant.varlen || !lists_tiles(n_tiles, problem.batch, num_sms)) {
      return {.launches = {main}};
    }
    return {.launches = {schedule_launch<ForwardKernelArgs>(schedule_, problem.batch), main},
            .workspace_bytes = kQueueBytes + tile_table_bytes(problem.max_Q_blocks(config_.B_r))};
  }

  KernelArguments arguments(const ForwardTensors &tensors, const ForwardProblem &problem,
                            const Numbers &numbers) const override {
    ForwardKernelArgs args{};
    args.Q = tensors.q().data_ptr();
    args.K = tensors.k().data_ptr();
    args.V = tensors.v().data_ptr();
    args.Q_strides = strides_of(tensors.q());
    args.K_strides = strides_of(tensors.k());
    args.V_strides = strides_of(tensors.v());
    args.problem = problem_args(variant, tensors, problem, numbers);
    args.problem.n_Q_blocks =
        variant.varlen ? static_cast<int>(problem.max_Q_blocks(config_.B_r)) : n_Q_blocks(problem);
    return KernelArguments(args);
  }
};

const AddFamily kAdded("FlashForwardKernelConfig",
                       make_kernel_of<FlashForwardKernelConfig, Sm80Forward>);

}  // namespace
}  // namespace flashsmith
