// Decode of the sm80 family: the arguments and launches of its kernels.

#include <algorithm>

#include "flashsmith/sm80/decode_arguments.cuh"
#include "host/decode_kernel.h"
#include "host/family.h"

namespace flashsmith {
namespace {

using Compiled = CompiledKernel<FlashDecodeKernelConfig>;

// Returns the time of a block alone on an SM, in sixteenths of the time with an SM's share of the
// memory bandwidth. With 16 rows it is bound by its bytes in flight, or by the SM; with more by
// its instructions. Measured on an H200 (docs/log/decode.md).
int time_alone(const FlashDecodeKernelConfig &cfg) {
  constexpr int kBytesOfShare = 80000, kWithManyRows = 15;
  if (row_warps(cfg) > 1) return kWithManyRows;
  return std::max(kWholeTime * kBytesOfShare / shared_memory_bytes(cfg), kShortestTime);
}

DecodeBlocks blocks_of(const FlashDecodeKernelConfig &cfg) {
  return {.step_keys = cfg.B_c * n_teams(cfg),
          .blocks_per_SM = cfg.blocks_per_SM,
          .min_steps = 2 * row_warps(cfg),
          .arrivals = 1,
          .in_rounds = false,
          .one_split_each = true,
          .time_alone = time_alone(cfg),
          .steps_even = 8,
          .splits_of_thread = kSplitsAtOnce};
}

class Sm80Decode final : public DecodeKernel {
  const FlashDecodeKernelConfig config_;

  // The threads of the last split wait for memory each time that they have added the partial
  // results in flight.
  bool has_combine_kernel(const ForwardProblem &problem, int64_t splits) const override {
    constexpr int64_t kMaxWaits = 3;
    const int64_t at_once = int64_t{threads_per_block(config_)} * splits_at_once(config_);
    return splits * n_chunks(problem) > kMaxWaits * at_once;
  }

 public:
  explicit Sm80Decode(const Compiled &kernel)
      : DecodeKernel(kernel, blocks_of(kernel.config), "flash_decode_kernel",
                     call<DecodeKernelArgs>),
        config_(kernel.config) {}

  KernelArguments arguments(const DecodeTensors &tensors, const ForwardProblem &problem,
                            const Numbers &numbers, const DecodeNumbers &own,
                            const DecodePlan &plan) const override {
    DecodeKernelArgs args{};
    args.Q = tensors.q().data_ptr();
    args.K = tensors.k_cache().data_ptr();
    args.V = tensors.v_cache().data_ptr();
    args.Q_strides = strides_of(tensors.q());
    args.K_strides = strides_of(tensors.k_cache());
    args.V_strides = strides_of(tensors.v_cache());
    args.K_scale = scale_of(tensors.k_scale());
    args.V_scale = scale_of(tensors.v_scale());
    args.K_row_scales = row_scale_args(tensors.k_scale());
    args.V_row_scales = row_scale_args(tensors.v_scale());
    args.problem = decode_problem(variant, tensors, problem, numbers, own, plan, tiles);
    return KernelArguments(args);
  }
};

const AddFamily kAdded("FlashDecodeKernelConfig",
                       make_kernel_of<FlashDecodeKernelConfig, Sm80Decode>);

}  // namespace
}  // namespace flashsmith
