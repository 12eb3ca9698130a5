#include "host/decode_kernel.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace flashsmith {
int64_t DecodeKernel::max_steps(const ForwardProblem &problem) const {
  return quotient_up(problem.seq_len_k, blocks_.step_keys);
}

bool DecodeKernel::takes_rounds(const ForwardProblem &problem, bool equal_lengths) const {
  const bool shares_keys = rows_of_head(problem) > tiles.B_r;
  return blocks_.in_rounds && shares_keys && (equal_lengths || problem.batch == 1);
}

int64_t DecodeKernel::splits_in_rounds(const ForwardProblem &problem, int num_sms) const {
  constexpr int kStepsOfRound = 3;  // the time in which a split begins, and is combined
  constexpr int kMaxRounds = 4;     // more of them leave too many partial results
  constexpr int kWeight = 8, kWeightOfSeveral = 9;  // several rounds have to gain an eighth
  const int64_t all_tiles = n_tiles(problem), steps = max_steps(problem);
  int64_t best = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t splits = 1; splits <= std::max<int64_t>(steps, 1); splits++) {
    const int64_t rounds = quotient_up(all_tiles * splits, num_sms);
    if (splits > 1 && rounds > kMaxRounds) break;
    const int64_t own = rounds * (quotient_up(steps, splits) + kStepsOfRound) *
                        (rounds > 1 ? kWeightOfSeveral : kWeight);
    if (own < least) best = splits;
    least = std::min(least, own);
  }
  return best;
}

int64_t DecodeKernel::even_splits(const ForwardProblem &problem, int num_sms) const {
  constexpr int kLong = 32;                 // KV steps
  constexpr int kEnoughOnTheirWay = 96000;  // bytes; enough for an SM's share of the bandwidth
  const int64_t maximum = std::max<int64_t>(max_steps(problem) / blocks_.min_steps, 1);
  const int64_t of_SMs = std::max<int64_t>(num_sms / n_tiles(problem), 1);
  const int64_t of_blocks = int64_t{num_sms} * blocks_.blocks_per_SM / n_tiles(problem);
  const bool is_long = max_steps(problem) / of_SMs >= kLong;
  const bool has_room = of_SMs > 1 || decode_.shared_memory_bytes < kEnoughOnTheirWay;
  // Small blocks have to be several on each SM in any case.
  const bool is_small = blocks_.blocks_per_SM > 2 && max_steps(problem) >= 4 * of_blocks;
  return std::clamp<int64_t>((is_long && has_room) || is_small ? of_blocks : of_SMs, 1, maximum);
}

bool DecodeKernel::is_even(const ForwardProblem &problem, int64_t splits) const {
  constexpr int kNotWorthStreamK = 8;  // KV steps of a split
  return problem.batch == 1 || quotient_up(max_steps(problem), splits) <= kNotWorthStreamK;
}

int64_t DecodeKernel::n_blocks_of_splits(const ForwardProblem &problem, int64_t all_splits,
                                         int64_t maximum) const {
  const int64_t blocks = std::min(all_splits, maximum);
  const int64_t tiles_of_head = quotient_up(rows_of_head(problem), tiles.B_r);
  // A block's splits are of different work tiles of a head, of which the last may have few rows.
  const bool always_the_same = tiles_of_head > 1 && blocks % tiles_of_head == 0;
  if (!always_the_same || blocks == all_splits) return blocks;
  const bool another_round = quotient_up(all_splits, blocks - 1) > quotient_up(all_splits, blocks);
  return another_round ? blocks : blocks - 1;
}

int64_t DecodeKernel::n_blocks(const ForwardProblem &problem, const DecodeNumbers &own,
                               const DecodePlan &plan, int num_sms) const {
  const int64_t maximum = int64_t{num_sms} * blocks_.blocks_per_SM;
  const int64_t splits = own.splits > 0 ? own.splits : plan.even_splits;
  const int64_t all_splits = n_tiles(problem) * splits;
  if (own.splits > 0 || plan.is_even) return n_blocks_of_splits(problem, all_splits, maximum);
  const int64_t steps = max_steps(problem) + 1;  // one is the fixed cost of a work tile
  const bool one_each = all_splits <= num_sms;
  return std::min(n_tiles(problem) * steps, one_each ? num_sms : maximum);
}

DecodePlan DecodeKernel::plan(const ForwardProblem &problem, const DecodeNumbers &own,
                              bool equal_lengths, int num_sms) const {
  if (problem.is_empty()) return {};
  DecodePlan plan;
  const bool in_rounds = takes_rounds(problem, equal_lengths);
  plan.even_splits = static_cast<int>(in_rounds ? splits_in_rounds(problem, num_sms)
                                                : even_splits(problem, num_sms));
  plan.is_even = in_rounds || is_even(problem, plan.even_splits);
  const int64_t all_splits = n_tiles(problem) * plan.even_splits;
  const int64_t blocks = n_blocks(problem, own, plan, num_sms);
  plan.splits_of_SM = static_cast<int>(quotient_up(all_splits, num_sms));
  plan.blocks_of_SM = static_cast<int>(quotient_up(blocks, num_sms));
  const int64_t slots = decode_slots(own, plan, n_tiles(problem), blocks);
  plan.launches = {decode_};
  plan.launches[0].grid = {static_cast<unsigned>(blocks), 1, 1};
  plan.workspace_bytes = slots * slot_bytes(tiles);
  if (slots == 0) return plan;
  const int64_t splits = own.splits > 0 ? own.splits : plan.even_splits;
  if (splits == 1 || !has_combine_kernel(problem, splits)) {
    const int64_t counters = n_tiles(problem) * blocks_.arrivals;
    plan.counter_bytes = counters * static_cast<int64_t>(sizeof(uint32_t));
    return plan;
  }
  // SplitTiles has as many places.
  add_combine(plan, problem, own.splits > 0 || plan.is_even ? n_tiles(problem) : blocks, splits);
  return plan;
}

int64_t DecodeKernel::n_chunks(const ForwardProblem &problem) const {
  return std::min<int64_t>(rows_of_head(problem), tiles.B_r) * tiles.d_head / kPartialChunk;
}

void DecodeKernel::add_combine(DecodePlan &plan, const ForwardProblem &problem, int64_t places,
                               int64_t splits) const {
  constexpr int64_t kSplitsOfThread = 8, kMaxGroups = kCombineThreads / kWarpSize;
  const auto sharing = static_cast<uint64_t>(quotient_up(splits, kSplitsOfThread));
  plan.combine_groups = static_cast<int>(std::min<int64_t>(std::bit_ceil(sharing), kMaxGroups));
  const int64_t blocks = quotient_up(n_chunks(problem), kCombineThreads / plan.combine_groups);
  plan.workspace_bytes += places * kSplitWords * static_cast<int64_t>(sizeof(uint32_t));
  plan.launches.push_back(
      {.function = combine_,
       .call = decode_.call,
       .grid = {static_cast<unsigned>(places), static_cast<unsigned>(blocks), 1},
       .cluster = 1,
       .threads = kCombineThreads,
       .shared_memory_bytes = kCombineThreads * kThreadPartialBytes,
       .overlaps = true});
}

Plan DecodeKernel::append_plan(const AppendTensors &tensors) const {
  const int64_t chunks = append_chunks(tensors);
  if (chunks == 0) return {};
  return {.launches = {{.function = append_,
                        .call = call<AppendKernelArgs>,
                        .grid = {static_cast<unsigned>(quotient_up(chunks, kAppendThreads)), 1, 1},
                        .cluster = 1,
                        .threads = kAppendThreads,
                        .shared_memory_bytes = 0}}};
}

}  // namespace flashsmith
