// The backward of the sm90 family: the arguments and launches of its kernels.
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cmath>

#include "flashsmith/sm90/backward_arguments.cuh"
#include "host/families/sm90_gradients.h"
#include "host/family.h"
#include "host/group_parts.h"
#include "host/launch.h"
#include "host/schedule.h"
#include "host/statistics.h"

namespace flashsmith {
namespace {

using Compiled = CompiledKernel<Sm90BackwardKernelConfig>;

class Sm90Backward final : public BackwardKernel {
  Sm90BackwardKernelConfig config_;
  KernelFunction key_tile_table_, main_, key_sums_;
  StatisticsFunctions statistics_;

  // Returns whether the workspace has a queue, behind what every backward has there. The launch of
  // the statistics, which exists if there are queries, clears it.
  bool has_queue(const ForwardProblem &problem) const {
    return n_tile_entries(config_) > 0 && !problem.is_empty();
  }
  int64_t gradient_bytes(const BackwardTensors &tensors) const {
    return gradient_workspace_bytes(tensors.forward(), config_.d_head);
  }
  // Returns the words of the queue: of drawn tiles, the counters of added sums, and those of dQ
  // that is converted early.
  int64_t n_queue_words(const BackwardTensors &tensors, const ForwardProblem &problem) const {
    return 1 + n_turns(tensors) + (converts_early(config_) ? n_counters(problem) : 0);
  }
  // Returns the counters of dQ that is converted early: of finished tiles of each head of K, which
  // can have as many parts as heads of Q, of cleared slices of each head of Q, and of drawn slices.
  static int n_counters(const ForwardProblem &problem) {
    return 2 * problem.n_heads * problem.batch + 1;
  }
  // Returns the number of counters of added sums.
  int64_t n_turns(const BackwardTensors &tensors) const {
    if (!config_.dQ_in_order) return 0;
    const ForwardTensors forward = tensors.forward();
    return all_statistics_blocks(forward) * forward.q().size(kHead) * dQ_parts(config_);
  }

  // The following functions return the blocks of kSummedKeys keys: in one batch entry of the
  // tensors; and in all entries, with one more for each sequence if sequences are packed.
  static int64_t n_key_blocks(const ForwardTensors &tensors) {
    return (tensors.k().size(kSequence) + kSummedKeys - 1) / kSummedKeys;
  }
  static int64_t all_key_blocks(const ForwardTensors &tensors) {
    const int64_t entries = tensors.k().size(kBatch) * n_key_blocks(tensors);
    return tensors.cu_seqlens_k() ? entries + n_sequences(tensors) : entries;
  }
  // Returns the bytes of the sums of dK and dV.
  int64_t bytes_of_sums(const BackwardTensors &tensors) const {
    const ForwardTensors forward = tensors.forward();
    return all_key_blocks(forward) * forward.k().size(kHead) * kSummedKeys * 2 * config_.d_head *
           static_cast<int64_t>(sizeof(float));
  }
  // The workspace has these sums, or those of each part, between the sums of dQ and the queue.
  int64_t key_sums_bytes(const BackwardTensors &tensors, int n_parts) const {
    if (n_parts == 1) return 0;
    return (adds_parts(config_) ? 1 : n_parts) * bytes_of_sums(tensors);
  }

  // Returns the number of heads of K in all batch entries.
  static int heads_of_k(const ForwardProblem &problem) {
    return problem.n_heads_kv * problem.batch;
  }
  int blocks_of(double n_keys) const { return static_cast<int>(std::ceil(n_keys / config_.B_c)); }
  int blocks_per_head(const ForwardProblem &problem) const { return blocks_of(problem.seq_len_k); }

  // Returns the heads of K in a group, of `n_heads` with `n_tiles` each, where a part of a head
  // counts as one. If blocks of keys add in order, the blocks of a head wait for each other less,
  // the more heads there are.
  int heads_per_group(int n_tiles, int n_heads, int num_sms) const {
    constexpr int kMinWithTurns = 8;
    if (starts_heads_alone()) return 1;
    return heads_that_fill(num_sms, n_tiles, n_heads, config_.dQ_in_order ? kMinWithTurns : 1);
  }

  // Returns whether heads of a group need not start together, because all tiles take equally long.
  bool starts_heads_alone() const { return !variant.causal && !config_.dQ_in_order; }

  // The following functions return the length of a sequence in the mean.
  static double mean_queries(const ForwardTensors &tensors, const ForwardProblem &problem) {
    if (!tensors.cu_seqlens_q()) return problem.seq_len_q;
    return static_cast<double>(tensors.q().size(kSequence)) / problem.batch;
  }
  static double mean_keys(const ForwardTensors &tensors, const ForwardProblem &problem) {
    if (!tensors.cu_seqlens_k()) return problem.seq_len_k;
    return static_cast<double>(tensors.k().size(kSequence)) / problem.batch;
  }

  // Returns whether a launch lists the tiles, of sequences that are of unlike lengths: not if each
  // tile has an SM, nor where tiles that add in any order are short. The tiles of the longest
  // sequence, side by side, then add to the same queries at a time: up to 25% slower on an H200.
  bool lists_tiles(const ForwardTensors &tensors, const ForwardProblem &problem,
                   int num_sms) const {
    constexpr int kMinKeysInAnyOrder = 4096;
    if (!variant.varlen || problem.is_empty() || problem.seq_len_k == 0) return false;
    const bool alike = are_alike(mean_queries(tensors, problem), problem.seq_len_q) &&
                       are_alike(mean_keys(tensors, problem), problem.seq_len_k);
    if (alike && !tensors.seqused_q() && !tensors.seqused_k()) return false;
    const bool in_any_order = variant.causal && !config_.dQ_in_order;
    if (in_any_order && problem.seq_len_k < kMinKeysInAnyOrder) return false;
    // Each head of Q may become a part.
    return int64_t{blocks_per_head(problem)} * problem.n_heads * problem.batch > num_sms;
  }

  // Returns the max number of entries of the table of key tiles, and the bytes that it takes
  // (attention/key_tile_table.cuh). Sequences that lie behind each other share no tile.
  int64_t n_table_entries(const ForwardTensors &tensors, const ForwardProblem &problem) const {
    const int64_t rows = tensors.k().size(kSequence);
    if (tensors.cu_seqlens_k()) return rows / config_.B_c + problem.batch;
    return (rows + config_.B_c - 1) / config_.B_c * problem.batch;
  }
  int64_t table_bytes(const ForwardTensors &tensors, const ForwardProblem &problem,
                      bool has_table) const {
    constexpr int64_t kEntryWords = 4, kSequenceWords = 3;
    if (!has_table) return 0;
    return (n_table_entries(tensors, problem) * kEntryWords + 1 + problem.batch * kSequenceWords) *
           static_cast<int64_t>(sizeof(uint32_t));
  }

  // Returns the number of heads of Q that are worked on in a round of tiles, by the mean length.
  int heads_of_round(const ForwardTensors &tensors, const ForwardProblem &problem, int n_parts,
                     int num_sms) const {
    const int tiles = std::max(blocks_of(mean_keys(tensors, problem)), 1);
    const int together =
        heads_per_group(blocks_per_head(problem), heads_of_k(problem) * n_parts, num_sms);
    const int of_k = std::max(together, (num_sms + tiles - 1) / tiles);
    return of_k * heads_of_part(problem.n_heads / problem.n_heads_kv, n_parts);
  }

  // Returns the number of heads, counted over all batch entries, of which dQ is converted while the
  // main kernel works on others. Those that are worked on in two rounds of tiles are left: a head
  // is done when its longest tile is, which is at the end for the last round and may be late in the
  // one before it.
  int early_heads(const ForwardTensors &tensors, const ForwardProblem &problem, int n_parts,
                  int num_sms) const {
    constexpr int kLateRounds = 2;
    if (!converts_early(config_) || !has_queue(problem) || problem.seq_len_k == 0) return 0;
    const int of_round = heads_of_round(tensors, problem, n_parts, num_sms);
    const int late = std::min(kLateRounds * of_round, kMaxGridYZ);
    return std::max(problem.n_heads * problem.batch - late, 0);
  }

  // Returns whether the warps that convert dQ have time to clear sums as well. They take 15 us for
  // a block of queries at d_head 128 on an H200, as long as products with this number of keys.
  // Windows are not known here.
  bool has_time_to_clear(const ForwardTensors &tensors, const ForwardProblem &problem) const {
    constexpr double kMinKeys = 960;
    if (variant.window) return false;
    // A query of packed sequences is in a sequence that is longer than the mean.
    const double length = (mean_keys(tensors, problem) + problem.seq_len_k) / 2;
    return (variant.causal ? length / 2 : length) >= kMinKeys;
  }

  // Sets the arguments of dQ that is converted early. Sums are cleared some rounds ahead: while a
  // head is waited for, those of two rounds are worked on, or more where sequences are shorter than
  // the mean.
  void set_early(GradientArgs &args, const Plan &plan, const ForwardTensors &tensors,
                 const ForwardProblem &problem, int num_sms) const {
    constexpr int kRoundsAhead = 5;
    args.n_early = plan.n_early;
    if (plan.n_early == 0) return;
    args.n_cleared_later = has_time_to_clear(tensors, problem) ? plan.n_early : 0;
    args.n_ahead = kRoundsAhead * heads_of_round(tensors, problem, plan.n_parts, num_sms);
    args.cleared = args.finished + problem.n_heads * problem.batch;
    args.drawn_slices = args.cleared + problem.n_heads * problem.batch;
    args.n_counters = n_counters(problem);
  }

  // Returns the sequences of a call, as far as they are known.
  std::vector<LikeSequences> likely_sequences(const ForwardTensors &tensors,
                                              const ForwardProblem &problem, bool has_table) const {
    const bool causal = variant.causal && !variant.window;
    const double n_q = mean_queries(tensors, problem), n_k = mean_keys(tensors, problem);
    const auto steps = [&](double of_q, double of_k) {
      return steps_of_tiles(of_q, of_k, config_.B_r, config_.B_c, causal);
    };
    if (!has_table) return {{heads_of_k(problem), steps(n_q, n_k)}};
    std::vector<LikeSequences> sequences;
    const double keys_of_query = static_cast<double>(problem.seq_len_k) / problem.seq_len_q;
    for (const double length : likely_lengths(problem.batch, problem.seq_len_q, n_q)) {
      sequences.push_back({problem.n_heads_kv, steps(length, length * keys_of_query)});
    }
    return sequences;
  }

  // Returns the number of parts of each group of query heads. Windows are not known here, so their
  // tiles count as equal, and packed sequences count as equally long unless their tiles are listed.
  int parts_of(const BackwardTensors &tensors, const ForwardProblem &problem, int num_sms,
               bool has_table) const {
    if (!config_.split_groups || problem.is_empty() || problem.seq_len_k == 0) return 1;
    const ForwardTensors forward = tensors.forward();
    GroupedProblem grouped{.group = problem.n_heads / problem.n_heads_kv,
                           .sequences = likely_sequences(forward, problem, has_table),
                           .n_empty = 0,
                           .has_fewer_steps = variant.window,
                           .costs = {},
                           .num_sms = num_sms};
    if (!has_table) {
      grouped.n_empty = int64_t{heads_of_k(problem)} * blocks_per_head(problem) - grouped.n_tiles();
    }
    // Equal tiles stay together, and so do a few that add in order. L2 holds rows of 64 elements.
    const bool causal = variant.causal && !variant.window;
    const bool stays = !causal || (config_.dQ_in_order && !grouped.has_many_tiles());
    grouped.costs = part_costs(adds_parts(config_), !stays && config_.d_head > 64,
                               step_us(config_.d_head, config_.B_c), bytes_of_sums(tensors));
    return best_parts(grouped, [&](int n_tiles, int n_heads) {
      return heads_per_group(has_table ? n_tiles : blocks_per_head(problem), n_heads, num_sms);
    });
  }

  // Returns the launch over blocks of keys.
  //
  // n_entries: The room of the table of key tiles; 0: there is none.
  Launch main(const ForwardProblem &problem, int n_parts, int num_sms, int64_t n_entries) const {
    const int64_t of_all_heads =
        n_entries > 0 ? n_entries * problem.n_heads_kv
                      : static_cast<int64_t>(blocks_per_head(problem)) * heads_of_k(problem);
    const int64_t n_tiles = of_all_heads * n_parts;
    const int64_t n_blocks = config_.persistent ? std::min<int64_t>(n_tiles, num_sms) : n_tiles;
    return {.function = main_,
            .call = call<Sm90BackwardKernelArgs>,
            .grid = {static_cast<unsigned>(n_blocks), 1, 1},
            .cluster = 1,
            .threads = static_cast<unsigned>(threads_per_block(config_)),
            .shared_memory_bytes = shared_memory_bytes(config_)};
  }

  // Returns the launch that adds the parts.
  Launch key_sums(const ForwardProblem &problem) const {
    constexpr unsigned kThreads = 128;
    const int blocks = (problem.seq_len_k + kSummedKeys - 1) / kSummedKeys;
    return {.function = key_sums_,
            .call = call<Sm90BackwardKernelArgs>,
            .grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(problem.n_heads_kv),
                     static_cast<unsigned>(problem.batch)},
            .cluster = 1,
            .threads = kThreads,
            .shared_memory_bytes = 0};
  }

  // Returns the arguments about parts. The sums are behind those of dQ.
  GroupPartArgs part_args(const BackwardTensors &tensors, const ForwardProblem &problem,
                          int n_parts) const {
    const ForwardTensors forward = tensors.forward();
    GroupPartArgs args{};
    args.n_parts = n_parts;
    if (n_parts == 1) {
      args.heads_per_part = problem.n_heads / std::max(problem.n_heads_kv, 1);
      return args;
    }
    const int group = problem.n_heads / problem.n_heads_kv;
    char *workspace = static_cast<char *>(tensors.workspace()->data_ptr());
    args.sums = reinterpret_cast<float *>(workspace + gradient_bytes(tensors));
    args.heads_per_part = heads_of_part(group, n_parts);
    args.all_key_blocks = static_cast<int>(all_key_blocks(forward));
    args.n_key_blocks = static_cast<int>(n_key_blocks(forward));
    args.packed_k = forward.cu_seqlens_k() != nullptr;
    return args;
  }

 public:
  explicit Sm90Backward(const Compiled &kernel)
      : BackwardKernel(kernel),
        config_(kernel.config),
        key_tile_table_(kernel.functions.find("key_tile_table_kernel")),
        main_(kernel.functions.at("backward_kernel")),
        key_sums_(kernel.functions.find("key_sums_kernel")),
        statistics_(kernel.functions) {}

  void check_layout(const BackwardTensors &tensors) const override {
    check_gradient_layout(tensors, variant.varlen);
  }

  Plan plan(const BackwardTensors &tensors, const ForwardProblem &problem,
            int num_sms) const override {
    check_gradient_grid(problem);
    const ForwardTensors forward = tensors.forward();
    const bool has_table = lists_tiles(forward, problem, num_sms);
    const int n_parts = parts_of(tensors, problem, num_sms, has_table);
    Plan plan{.workspace_bytes = gradient_bytes(tensors),
              .n_parts = n_parts,
              .n_early = early_heads(forward, problem, n_parts, num_sms),
              .has_table = has_table};
    plan.workspace_bytes += key_sums_bytes(tensors, n_parts);
    plan.workspace_bytes += table_bytes(forward, problem, has_table);
    if (has_queue(problem)) {
      plan.workspace_bytes += n_queue_words(tensors, problem) * sizeof(uint32_t);
    }
    if (has_table) {
      add_launch(plan, schedule_launch<Sm90BackwardKernelArgs>(key_tile_table_, problem.batch));
    }
    add_statistics<Sm90BackwardKernelArgs>(plan, statistics_, tensors, problem);
    if (problem.n_heads_kv > 0 && problem.batch > 0) {
      add_launch(
          plan, main(problem, n_parts, num_sms, has_table ? n_table_entries(forward, problem) : 0));
    }
    if (n_parts > 1) add_launch(plan, key_sums(problem));
    if (statistics_.conversion) {
      add_conversion<Sm90BackwardKernelArgs>(plan, statistics_, problem, plan.n_early);
    }
    return plan;
  }

  KernelArguments arguments(const Plan &plan, const BackwardTensors &tensors,
                            const ForwardProblem &problem, const Numbers &numbers) const override {
    Sm90BackwardKernelArgs args = sm90_gradient_arguments(config_, variant, tensors, problem,
                                                          numbers, config_.B_c, config_.d_head);
    const ForwardTensors forward = tensors.forward();
    args.problem.tiles = nullptr;
    if (!problem.is_empty()) {
      char *behind_sums = static_cast<char *>(tensors.workspace()->data_ptr()) +
                          gradient_bytes(tensors) + key_sums_bytes(tensors, plan.n_parts);
      if (plan.has_table) {
        args.problem.tiles = reinterpret_cast<uint32_t *>(behind_sums);
        args.problem.n_Q_blocks = static_cast<int>(n_table_entries(forward, problem));
      }
      if (has_queue(problem)) {
        char *behind_table = behind_sums + table_bytes(forward, problem, plan.has_table);
        args.gradient.queue = reinterpret_cast<uint32_t *>(behind_table);
        args.gradient.summed = args.gradient.queue + 1;
        args.gradient.finished = args.gradient.summed + n_turns(tensors);
      }
    }
    const int num_sms = num_sms_of(kind, forward.q().device());
    set_early(args.gradient, plan, forward, problem, num_sms);
    args.heads_per_group =
        heads_per_group(blocks_per_head(problem), heads_of_k(problem) * plan.n_parts, num_sms);
    args.tiles_per_group = starts_heads_alone() ? 0 : tiles_that_fill(num_sms);
    args.parts = part_args(tensors, problem, plan.n_parts);
    return KernelArguments(args);
  }
};

const AddFamily kAdded("Sm90BackwardKernelConfig",
                       make_kernel_of<Sm90BackwardKernelConfig, Sm90Backward>);

}  // namespace
}  // namespace flashsmith
