// The forward of the sm90 family: the arguments and launches of its kernels.
#include <tvm/ffi/error.h>

#include <algorithm>
#include <numeric>

#include "flashsmith/sm90/arguments.cuh"
#include "host/family.h"
#include "host/forward_kernel.h"
#include "host/schedule.h"
#include "host/tensor_map.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

using Compiled = CompiledKernel<Sm90ForwardKernelConfig>;

class Sm90Forward final : public ForwardKernel {
  Sm90ForwardKernelConfig config_;
  KernelFunction function_, schedule_;  // schedule_: of varlen variants

  static int group_size(const ForwardProblem &problem) {
    return std::max(problem.n_heads / std::max(problem.n_heads_kv, 1), 1);
  }

  // Returns the max number of entries of the tile table.
  int64_t n_entries(const ForwardProblem &problem) const {
    return problem.max_Q_blocks(tile_queries(config_, group_size(problem)) * config_.cluster_size);
  }

  int n_tiles(const ForwardProblem &problem) const {
    const int Q_blocks_of_head = Q_blocks(config_, problem.seq_len_q, group_size(problem));
    const int64_t n_blocks = variant.varlen
                                 ? n_entries(problem) * config_.cluster_size
                                 : Q_blocks_of_head * static_cast<int64_t>(problem.batch);
    return static_cast<int>(n_blocks *
                            (config_.packed_heads ? problem.n_heads_kv : problem.n_heads));
  }

  // Returns the arguments of paged K and V. A box has the max number of rows that lie in one page
  // wherever a block of keys begins.
  PagesArgs pages_of(const ForwardTensors &tensors) const {
    const TensorView &k = tensors.k(), &table = *tensors.block_table();
    const auto page_rows = static_cast<int>(k.size(kSequence));
    return {.block_table = static_cast<const int32_t *>(table.data_ptr()),
            .block_table_stride = table.stride(0),
            .n_pages = static_cast<int>(k.size(kBatch)),
            .page_rows = page_rows,
            .box_rows = std::gcd(page_rows, config_.B_c)};
  }

  ptx::TensorMap map(const TensorView &t, Element element, const BoxedRows &rows, int box_rows,
                     int packed_heads = 0) const {
    const Box box{rows.columns, box_rows, rows.swizzle, packed_heads};
    return make_tensor_map(t, type_of(element), box, variant.varlen);
  }

  // Sets the maps of Q and O.
  void set_query_maps(Sm90ForwardKernelArgs &args, const ForwardTensors &tensors) const {
    const HeadGroup &group = args.group;
    const bool packed = config_.packed_heads;
    const int Q_rows = packed ? group.queries : kQueryBoxRows, heads = packed ? group.size : 0;
    const int O_rows_of_box = packed ? group.queries : kOutputBoxRows;
    args.Q_map = map(tensors.q(), Element::of_scores, Q_tile(config_), Q_rows, heads);
    if (!config_.tma_store) return;
    args.O_map = map(tensors.o(), Element::of_config, O_rows(config_), O_rows_of_box, heads);
  }

  // Throws ValueError for more heads than a warpgroup has rows.
  void check_group(const ForwardProblem &problem) const {
    if (!config_.packed_heads || group_size(problem) <= kMaxPackedHeads) return;
    TVM_FFI_THROW(ValueError) << "q has " << group_size(problem)
                              << " heads for each head of k; kernels with packed heads take up to "
                              << kMaxPackedHeads;
  }

 public:
  explicit Sm90Forward(const Compiled &kernel)
      : ForwardKernel(kernel),
        config_(kernel.config),
        function_(kernel.functions.at("forward_kernel")),
        schedule_(kernel.functions.find("schedule_kernel")) {}

  ScalarType type_of(Element element) const override {
    const bool fp8 = (element == Element::of_scores && config_.fp8_scores) ||
                     (element == Element::of_values && config_.fp8_values);
    return fp8 ? ScalarType::Float8_e4m3fn : config_.dtype;
  }

  void check_layout(const ForwardTensors &tensors) const override {
    tensors.all().for_each([](const Argument &argument, const TensorView &t) {
      if (has_rows(argument)) check_map_strides(argument, t);
    });
    if (!variant.varlen) return;
    tensors.all().for_each([](const Argument &argument, const TensorView &t) {
      if (has_rows(argument)) check_map_batch_stride(argument, t);
    });
    if (!variant.paged) return;
    tensors.all().for_each([](const Argument &argument, const TensorView &t) {
      if (!argument.has(Dim::seq_len_k)) return;
      check_map_pages(argument, t);
      check_map_reach(argument, t);
    });
  }

  Plan plan(const ForwardProblem &problem, int num_sms) const override {
    check_group(problem);
    const int tiles = n_tiles(problem);
    const bool finds = variant.varlen && !lists_tiles(tiles, problem.batch, num_sms);
    const int blocks = finds ? tiles : grid_blocks(config_, tiles, num_sms);
    const Launch main{.function = function_,
                      .call = call<Sm90ForwardKernelArgs>,
                      .grid = {static_cast<unsigned>(blocks), 1, 1},
                      .cluster = static_cast<unsigned>(config_.cluster_size),
                      .threads = static_cast<unsigned>(threads_per_block(config_)),
                      .shared_memory_bytes = shared_memory_bytes(config_)};
    if (finds) return {.launches = {main}};
    if (variant.varlen) {
      return {.launches = {schedule_launch<Sm90ForwardKernelArgs>(schedule_, problem.batch), main},
              .workspace_bytes = kQueueBytes + tile_table_bytes(n_entries(problem))};
    }
    const int64_t queue_bytes = config_.dynamic_queue ? kQueueBytes : 0;
    return {.launches = {main}, .workspace_bytes = queue_bytes, .zeroed_bytes = queue_bytes};
  }

  KernelArguments arguments(const ForwardTensors &tensors, const ForwardProblem &problem,
                            const Numbers &numbers) const override {
    Sm90ForwardKernelArgs args{};
    if (variant.paged) args.pages = pages_of(tensors);
    const int KV_rows = variant.paged ? args.pages.box_rows : map_KV_rows(config_);
    args.group = head_group(group_size(problem));
    set_query_maps(args, tensors);
    args.K_map = map(tensors.k(), Element::of_scores, K_tile(config_), KV_rows);
    args.V_map = map(tensors.v(), Element::of_values, V_tile(config_), KV_rows);
    args.Q_scale = scale_of(tensors.q_scale());
    args.K_scale = scale_of(tensors.k_scale());
    args.V_scale = scale_of(tensors.v_scale());
    args.problem = problem_args(variant, tensors, problem, numbers);
    args.problem.n_Q_blocks = Q_blocks(config_, problem.seq_len_q, args.group.size);
    if (variant.varlen) {
      args.problem.n_Q_blocks = static_cast<int>(n_entries(problem));
      args.Q_batch_rows = map_batch_rows(tensors.q());
      args.K_batch_rows = map_batch_rows(tensors.k());
      args.V_batch_rows = map_batch_rows(tensors.v());
      args.O_batch_rows = map_batch_rows(tensors.o());
    }
    return KernelArguments(args);
  }
};

const AddFamily kAdded("Sm90ForwardKernelConfig",
                       make_kernel_of<Sm90ForwardKernelConfig, Sm90Forward>);

}  // namespace
}  // namespace flashsmith
