// Decode of the sm80 family: what its kernels are told, and how they are launched.
#include <algorithm>
#include <memory>

#include "flashsmith/sm80/decode_arguments.cuh"
#include "host/decode_kernel.h"

namespace flashsmith {
namespace {

using Named = NamedKernel<FlashDecodeKernelConfig, FlashDecodeKernels>;

class Sm80Decode final : public DecodeKernel {
  FlashDecodeKernelConfig config_;
  FlashDecodeKernels kernels_;

  int64_t n_tiles(const ForwardProblem &problem) const {
    return decode_tiles(problem, config_.B_r);
  }

  // Blocks that are resident at a time, or fewer: as many as there are rounds of keys.
  int64_t n_blocks(const ForwardProblem &problem, const DecodeNumbers &own,
                   int multiprocessors) const {
    const int64_t round = int64_t{config_.B_c} * n_teams(config_);
    const int64_t rounds = (problem.seq_len_k + round - 1) / round + 1;  // one is a tile's charge
    const int64_t parts = n_tiles(problem) * (own.splits > 0 ? own.splits : rounds);
    return std::min<int64_t>(parts, int64_t{multiprocessors} * config_.blocks_per_SM);
  }

 public:
  Sm80Decode(const Named &kernel, const FamilyGpus &gpus)
      : DecodeKernel(kernel, gpus), config_(kernel.config), kernels_(kernel.function) {}

  Plan plan(const ForwardProblem &problem, const DecodeNumbers &own,
            int multiprocessors) const override {
    if (problem.is_empty()) return {};
    const int64_t blocks = n_blocks(problem, own, multiprocessors);
    // A block hands on what began before it, and what goes on behind it.
    const int64_t slots = own.splits == 0   ? 2 * blocks
                          : own.splits == 1 ? 0
                                            : n_tiles(problem) * own.splits;
    const int64_t counter_bytes = slots > 0 ? n_tiles(problem) * sizeof(uint32_t) : 0;
    return {.launches = {{.kernel = "flash_decode_kernel",
                          .function = reinterpret_cast<const void *>(kernels_.decode),
                          .call = call<DecodeKernelArgs>,
                          .grid = {static_cast<unsigned>(blocks), 1, 1},
                          .cluster = 1,
                          .threads = static_cast<unsigned>(threads_per_block(config_)),
                          .shared_memory_bytes = shared_memory_bytes(config_)}},
            .workspace_bytes = slots * slot_bytes(tiles),
            .counter_bytes = counter_bytes};
  }

  Plan append_plan(const AppendTensors &tensors) const override {
    const int64_t chunks = append_chunks(tensors);
    if (chunks == 0) return {};
    return {
        .launches = {
            {.kernel = "cache_append_kernel",
             .function = reinterpret_cast<const void *>(kernels_.append),
             .call = call<AppendKernelArgs>,
             .grid = {static_cast<unsigned>((chunks + kAppendThreads - 1) / kAppendThreads), 1, 1},
             .cluster = 1,
             .threads = kAppendThreads,
             .shared_memory_bytes = 0}}};
  }

  KernelArguments arguments(const DecodeTensors &tensors, const ForwardProblem &problem,
                            const Numbers &numbers, const DecodeNumbers &own,
                            const Plan &plan) const override {
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

}  // namespace

std::unique_ptr<Kernel> make_kernel(const Named &kernel, const FamilyGpus &gpus) {
  return std::make_unique<Sm80Decode>(kernel, gpus);
}

}  // namespace flashsmith
