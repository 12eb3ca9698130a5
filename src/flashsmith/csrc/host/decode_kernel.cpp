#include "host/decode_kernel.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace flashsmith {
namespace {

// Work tiles are few if there are fewer than this for so many SMs: several SMs then share each. The
// heuristic takes other kernels from there on, too (configs/decode.py).
constexpr int kFew = 3, kSMsOfFew = 10;

}  // namespace

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
  constexpr int kLong = 20;                 // KV steps
  constexpr int kEnoughOnTheirWay = 96000;  // bytes; enough for an SM's share of the bandwidth
  const int64_t maximum = std::max<int64_t>(max_steps(problem) / blocks_.min_steps, 1);
  const bool has_few = kSMsOfFew * n_tiles(problem) < kFew * num_sms;
  if (blocks_.one_split_each && !has_few) {
    return std::min(splits_of_one_round(problem, num_sms), maximum);
  }
  const int64_t of_SMs = std::max<int64_t>(num_sms / n_tiles(problem), 1);
  const int64_t of_blocks = resident_blocks(num_sms) / n_tiles(problem);
  const bool is_long = max_steps(problem) / of_SMs >= kLong;
  const bool has_room = of_SMs > 1 || decode_.shared_memory_bytes < kEnoughOnTheirWay;
  // Small blocks have to be several on each SM in any case.
  const bool is_small = blocks_.blocks_per_SM > 2 && max_steps(problem) >= 4 * of_blocks;
  return std::clamp<int64_t>((is_long && has_room) || is_small ? of_blocks : of_SMs, 1, maximum);
}

int64_t DecodeKernel::splits_of_one_round(const ForwardProblem &problem, int num_sms) const {
  constexpr int64_t kMinSteps = 4;  // of a split, if an SM has several
  const int64_t tiles = n_tiles(problem), steps = max_steps(problem);
  const int64_t of_SMs = num_sms / tiles, of_blocks = resident_blocks(num_sms) / tiles;
  const int64_t most = std::max({std::min(of_blocks, steps / kMinSteps), of_SMs, int64_t{1}});
  const auto time = [&](int64_t splits) {
    return time_of_splits(tiles * splits, num_sms) * quotient_up(steps, splits);
  };
  int64_t least = time(1), best = 1;
  for (int64_t splits = 2; splits <= most; splits++) least = std::min(least, time(splits));
  if (time(1) == least) return best;
  // Short splits leave less to the end where requests are shorter than the longest one.
  for (int64_t splits = 2; splits <= most; splits++) {
    if (10 * time(splits) <= 11 * least) best = splits;
  }
  return best;
}

int64_t DecodeKernel::time_of_splits(int64_t all_splits, int num_sms) const {
  if (!blocks_.one_split_each) return kWholeTime * quotient_up(all_splits, num_sms);
  const int64_t full_rounds = all_splits / resident_blocks(num_sms),
                last_round = all_splits % resident_blocks(num_sms);
  int64_t time = full_rounds * blocks_.blocks_per_SM * kWholeTime;
  if (last_round > 0) {
    const int64_t together = kShortestTime * quotient_up(last_round, num_sms);
    time += std::max<int64_t>(blocks_.time_alone, together);
  }
  return std::max(time, quotient_up(kWholeTime * all_splits, num_sms));
}

SplitTimes DecodeKernel::times(int64_t all_splits, int64_t ranges, int num_sms) const {
  constexpr int kLastOfMany = 4;
  return {.all = static_cast<int>(time_of_splits(all_splits, num_sms)),
          .alone = blocks_.time_alone,
          .last = blocks_.one_split_each ? kLastOfMany : kWholeTime,
          .ranges = static_cast<int>(time_of_splits(ranges, num_sms))};
}

bool DecodeKernel::is_even(const ForwardProblem &problem, int64_t splits) const {
  return problem.batch == 1 || quotient_up(max_steps(problem), splits) <= blocks_.steps_even;
}

bool DecodeKernel::are_even_splits_shorter(const ForwardProblem &problem, int64_t splits,
                                           int num_sms) const {
  // KeySplits has these, too. There a range costs 2 to 21 KV steps, less than 4 at d 96 alone.
  constexpr int kFixedCost = 1, kRangeCost = 4, kAbout = 32;
  const int64_t tiles = n_tiles(problem), steps = max_steps(problem), all_splits = tiles * splits;
  const int64_t ranges = n_ranges(problem, all_splits, num_sms);
  const SplitTimes of = times(all_splits, ranges, num_sms);
  const int64_t even = of.all * (quotient_up(steps, splits) + kFixedCost);
  const int64_t by_ranges = of.ranges * quotient_up(tiles * (steps + kFixedCost), ranges);
  return even <= by_ranges + by_ranges / kAbout + kRangeCost * kWholeTime;
}

bool DecodeKernel::begins_early(int64_t blocks, bool combines, int num_sms) const {
  const int64_t resident = resident_blocks(num_sms);
  return !combines && (2 * blocks <= resident || blocks >= resident);
}

int64_t DecodeKernel::n_ranges(const ForwardProblem &problem, int64_t all_splits,
                               int num_sms) const {
  const int64_t steps = max_steps(problem) + 1;  // one is the fixed cost of a work tile
  const bool one_each = all_splits <= num_sms;
  return std::min(n_tiles(problem) * steps, one_each ? num_sms : resident_blocks(num_sms));
}

DecodePlan DecodeKernel::plan(const ForwardProblem &problem, const DecodeNumbers &own,
                              bool equal_lengths, int num_sms) const {
  if (problem.is_empty()) return {};
  DecodePlan plan;
  const bool in_rounds = takes_rounds(problem, equal_lengths);
  plan.splits = static_cast<int>(own.splits > 0 ? own.splits
                                 : in_rounds    ? splits_in_rounds(problem, num_sms)
                                                : even_splits(problem, num_sms));
  plan.is_even = own.splits > 0 || in_rounds || is_even(problem, plan.splits) ||
                 (equal_lengths && are_even_splits_shorter(problem, plan.splits, num_sms));
  const int64_t all_splits = n_tiles(problem) * plan.splits;
  const bool wait = do_splits_wait(plan, problem, num_sms);
  const bool combines = plan.splits > 1 && !wait && has_combine_kernel(problem, plan.splits);
  int64_t blocks =
      blocks_.one_split_each ? all_splits : std::min(all_splits, resident_blocks(num_sms));
  plan.next_begins_early = begins_early(blocks, combines, num_sms);
  constexpr int kSplitsOfTile = 3;  // with fewer, the last one is much shorter
  bool in_parts = false;
  if (!plan.is_even) {
    plan.n_ranges = static_cast<int>(n_ranges(problem, all_splits, num_sms));
    plan.times = times(all_splits, plan.n_ranges, num_sms);
    plan.next_begins_early_behind_ranges = begins_early(plan.n_ranges, combines, num_sms);
    in_parts = blocks_.one_split_each && !equal_lengths &&
               kSplitsOfTile * n_tiles(problem) <= plan.n_ranges;
    if (in_parts) plan.next_begins_early = plan.next_begins_early_behind_ranges;
    const bool may_be_even = blocks_.one_split_each && !in_parts;
    blocks = may_be_even ? std::max<int64_t>(blocks, plan.n_ranges) : plan.n_ranges;
  }
  const int64_t slots = decode_slots(plan, n_tiles(problem));
  plan.launches = {decode_};
  plan.launches[0].grid = {static_cast<unsigned>(blocks), 1, 1};
  if (wait && plan.is_even) plan.launches[0].function = waiting_;
  if (!plan.is_even && !in_parts) plan.launches[0].function = stream_k_;
  plan.workspace_bytes = slots * slot_bytes(tiles);
  if (slots == 0) return plan;
  if (!combines) {
    if (wait) {
      plan.polls = polls(problem, blocks);
      plan.combine_groups =
          combine_groups(plan.splits, max_waiting_splits() / blocks_.splits_of_thread);
    }
    const int64_t counters = n_tiles(problem) * blocks_.arrivals;
    plan.counter_bytes = counters * static_cast<int64_t>(sizeof(uint32_t));
    return plan;
  }
  add_combine(plan, problem);
  return plan;
}

int64_t DecodeKernel::n_chunks(const ForwardProblem &problem) const {
  const int64_t rows = quotient_up(rows_of_head(problem), tiles_of_head(problem, tiles.B_r));
  return rows * tiles.d_head / kPartialChunk;
}

bool DecodeKernel::do_splits_wait(const DecodePlan &plan, const ForwardProblem &problem,
                                  int num_sms) const {
  if (!plan.is_even) return max_waiting_splits() > 0;
  return has_combine_kernel(problem, plan.splits) && plan.splits <= max_waiting_splits() &&
         n_tiles(problem) * plan.splits <= resident_blocks(num_sms);
}

int DecodeKernel::polls(const ForwardProblem &problem, int64_t blocks) const {
  constexpr int64_t kSlowest = 4, kLeast = 40,
                    kBytesOfOne = 22500;  // which an SM reads in that time
  const int64_t rows = int64_t{problem.batch} * problem.n_heads_kv * problem.seq_len_k;
  const int64_t bytes = rows * tiles.d_head * 2 * static_cast<int64_t>(sizeof(uint16_t));
  return static_cast<int>(kLeast + kSlowest * bytes / kBytesOfOne / blocks);
}

int DecodeKernel::combine_groups(int64_t splits, int64_t maximum) const {
  const auto sharing = static_cast<uint64_t>(quotient_up(splits, blocks_.splits_of_thread));
  return static_cast<int>(std::min<int64_t>(std::bit_ceil(sharing), maximum));
}

void DecodeKernel::add_combine(DecodePlan &plan, const ForwardProblem &problem) const {
  plan.combine_groups = combine_groups(plan.splits, kCombineThreads / kWarpSize);
  const int64_t blocks = quotient_up(n_chunks(problem), kCombineThreads / plan.combine_groups);
  const int64_t all_tiles = n_tiles(problem);
  plan.workspace_bytes += all_tiles * kSplitWords * static_cast<int64_t>(sizeof(uint32_t));
  plan.launches.push_back(
      {.function = combine_,
       .call = decode_.call,
       .grid = {static_cast<unsigned>(all_tiles), static_cast<unsigned>(blocks), 1},
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
