// Decode of the sm90 family: the arguments of its kernels.
#include <tvm/ffi/error.h>

#include <numeric>

#include "flashsmith/sm90/decode_arguments.cuh"
#include "host/decode_kernel.h"
#include "host/family.h"
#include "host/tensor_map.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

using Compiled = CompiledKernel<Sm90DecodeKernelConfig>;

DecodeBlocks blocks_of(const Sm90DecodeKernelConfig &cfg) {
  return {.step_keys = cfg.B_c,
          .blocks_per_SM = 1,
          .min_steps = 1,
          .arrivals = cfg.n_warpgroups,
          .in_rounds = true,
          .one_split_each = false,
          .time_alone = kWholeTime,
          .steps_even = 16,
          .splits_of_thread = kSplitsOfThread};
}

class Sm90Decode final : public DecodeKernel {
  Sm90ForwardKernelConfig config_;

  // A warpgroup adds splits one after the other.
  bool has_combine_kernel(const ForwardProblem &, int64_t splits) const override {
    constexpr int64_t kMaxByTheLast = 2;
    return splits > kMaxByTheLast;
  }

  int64_t max_waiting_splits() const override { return kMaxWaitingSplits; }

  // Returns the max number of rows of a box that lie in one page wherever a block of keys begins.
  int box_rows(const DecodeTensors &tensors) const {
    if (!tensors.block_table()) return config_.B_c;
    return std::gcd(static_cast<int>(tensors.k_cache().size(kSequence)), config_.B_c);
  }

  ptx::TensorMap map(const TensorView &t, const BoxedRows &rows, int n_rows) const {
    return make_tensor_map(t, tiles.dtype, {rows.columns, n_rows, rows.swizzle}, true);
  }

 public:
  explicit Sm90Decode(const Compiled &kernel)
      : DecodeKernel(kernel, blocks_of(kernel.config), "decode_kernel", call<Sm90DecodeKernelArgs>),
        config_(forward_config(kernel.config)) {}

  void check_layout(const DecodeTensors &tensors) const override {
    const bool paged = tensors.block_table() != nullptr;
    tensors.all().for_each([&](const Argument &argument, const TensorView &t) {
      if (!argument.has(Dim::rows)) return;
      check_map_strides(argument, t);
      check_map_batch_stride(argument, t);
      check_map_reach(argument, t);
      if (paged) check_map_pages(argument, t);
    });
    if (paged && tensors.cache_leftpad()) {
      TVM_FFI_THROW(ValueError) << "cache_leftpad was passed with block_table; the sm90 family's "
                                   "blocks of keys begin where pages do: pass a configuration of "
                                   "the sm80 family";
    }
  }

  KernelArguments arguments(const DecodeTensors &tensors, const ForwardProblem &problem,
                            const Numbers &numbers, const DecodeNumbers &own,
                            const DecodePlan &plan) const override {
    Sm90DecodeKernelArgs args{};
    args.box_rows = box_rows(tensors);
    args.K_map = map(tensors.k_cache(), K_tile(config_), args.box_rows);
    args.V_map = map(tensors.v_cache(), V_tile(config_), args.box_rows);
    args.K_batch_rows = map_batch_rows(tensors.k_cache());
    args.V_batch_rows = map_batch_rows(tensors.v_cache());
    args.Q = tensors.q().data_ptr();
    args.Q_strides = strides_of(tensors.q());
    args.problem = decode_problem(variant, tensors, problem, numbers, own, plan, tiles);
    return KernelArguments(args);
  }
};

const AddFamily kAdded("Sm90DecodeKernelConfig",
                       make_kernel_of<Sm90DecodeKernelConfig, Sm90Decode>);

}  // namespace
}  // namespace flashsmith
