// Forward kernels of the sm90 family: what they are told, and how they are launched.
#include <tvm/ffi/error.h>

#include <memory>

#include "flashsmith/sm90/arguments.cuh"
#include "host/forward_kernel.h"
#include "host/tensor_map.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr const char *kDimensions[] = {"batch", "sequence", "head"};

// Bulk copies step through memory by positive strides only.
void check_strides(const Argument &argument, const TensorView &t) {
  constexpr int64_t kMaxStride = (int64_t{1} << 40) / kElementBytes;
  for (int i = kBatch; i <= kHead; i++) {
    if (t.size(i) > 1 && (t.stride(i) <= 0 || t.stride(i) >= kMaxStride)) {
      TVM_FFI_THROW(ValueError) << argument.name << " has " << kDimensions[i] << " stride "
                                << t.stride(i)
                                << " elements; the sm90 family takes 8 to 2^39 (an expanded "
                                   "dimension has 0): call .contiguous()";
    }
  }
}

using Named = NamedKernel<Sm90ForwardKernelConfig, sm90_forward_kernel_fn>;

class Kernel final : public ForwardKernel {
  // The queue's next tile, and how many blocks have found it empty.
  static constexpr int64_t kQueueBytes = 2 * sizeof(uint32_t);

  Sm90ForwardKernelConfig config_;
  sm90_forward_kernel_fn function_;

  Grid grid(const ForwardProblem &problem, int multiprocessors) const {
    const int n_tiles = Q_blocks(config_, problem.seq_len_q) * problem.n_heads * problem.batch;
    return {static_cast<unsigned>(grid_blocks(config_, n_tiles, multiprocessors)), 1, 1};
  }

  ptx::TensorMap map(const TensorView &t, int box_rows) const {
    return make_tensor_map(t, config_.dtype,
                           {map_columns(config_), box_rows, map_swizzle(config_)});
  }

 public:
  Kernel(const Named &kernel, const FamilyGpus &gpus)
      : ForwardKernel(kernel, gpus), config_(kernel.config), function_(kernel.function) {}

  void check_layout(const ForwardTensors &tensors) const override {
    tensors.all().for_each([](const Argument &argument, const TensorView &t) {
      if (is_strided(argument)) check_strides(argument, t);
    });
  }

  Plan plan(const ForwardProblem &problem, int multiprocessors) const override {
    const int64_t queue_bytes = config_.dynamic_queue ? kQueueBytes : 0;
    return {.launches = {{.kernel = "forward_kernel",
                          .function = reinterpret_cast<const void *>(function_),
                          .call = call<Sm90ForwardKernelArgs>,
                          .grid = grid(problem, multiprocessors),
                          .cluster = static_cast<unsigned>(config_.cluster_size),
                          .threads = static_cast<unsigned>(threads_per_block(config_)),
                          .shared_memory_bytes = shared_memory_bytes(config_)}},
            .workspace_bytes = queue_bytes,
            .zeroed_bytes = queue_bytes};
  }

  KernelArguments arguments(const ForwardTensors &tensors, const ForwardProblem &problem,
                            const ForwardNumbers &numbers) const override {
    Sm90ForwardKernelArgs args{};
    args.Q_map = map(tensors.q(), kQueryBoxRows);
    args.K_map = map(tensors.k(), map_KV_rows(config_));
    args.V_map = map(tensors.v(), map_KV_rows(config_));
    if (config_.tma_store) args.O_map = map(tensors.o(), kOutputBoxRows);
    args.problem = problem_args(tensors, problem, numbers);
    args.problem.n_Q_blocks = Q_blocks(config_, problem.seq_len_q);
    return KernelArguments(args);
  }
};

}  // namespace

std::unique_ptr<ForwardKernel> make_kernel(const Named &kernel, const FamilyGpus &gpus) {
  return std::make_unique<Kernel>(kernel, gpus);
}

}  // namespace flashsmith
