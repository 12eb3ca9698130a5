#include "host/args/decode.h"

#include <algorithm>

#include "host/args/divisor.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr int64_t kFloatBytes = sizeof(float);

const int32_t *data_of(const TensorView *t) {
  return t ? static_cast<const int32_t *>(t->data_ptr()) : nullptr;
}

}  // namespace

int64_t cache_rows(const TensorView &k, const TensorView *table) {
  return k.size(kSequence) * (table ? table->size(1) : 1);
}

CacheArgs cache_args(const TensorView &k, const TensorView *table, const TensorView *batch_idx) {
  return {.block_table = data_of(table),
          .block_table_stride = table ? table->stride(0) : 0,
          .batch_idx = data_of(batch_idx),
          .leftpad = nullptr,
          .n_entries = static_cast<int>(k.size(kBatch)),
          .rows_per_entry = divisor(k.size(kSequence)),
          .rows = static_cast<int>(cache_rows(k, table)),
          .n_new = 0};
}

RowScales row_scale_args(const TensorView *scale) {
  if (!scale || scale->ndim() != kTokenScaleRank) return {};
  return {.of_rows = true, .row_stride = scale->stride(1)};
}

ForwardProblem problem_of(const DecodeTensors &tensors) {
  const TensorView &q = tensors.q(), &k = tensors.k_cache();
  return {.batch = static_cast<int>(q.size(kBatch)),
          .n_heads = static_cast<int>(q.size(kHead)),
          .n_heads_kv = static_cast<int>(k.size(kHead)),
          .seq_len_q = static_cast<int>(q.size(kSequence)),
          .seq_len_k = static_cast<int>(cache_rows(k, tensors.block_table())),
          .total_q = 0};
}

int64_t rows_of_head(const ForwardProblem &problem) {
  return int64_t{problem.seq_len_q} * (problem.n_heads / problem.n_heads_kv);
}

int64_t tiles_of_head(const ForwardProblem &problem, int B_r) {
  return quotient_up(rows_of_head(problem), B_r);
}

int64_t decode_tiles(const ForwardProblem &problem, int B_r) {
  return tiles_of_head(problem, B_r) * problem.n_heads_kv * problem.batch;
}

// A block of stream-K stores at most two partial results: of a work tile that began before it, and
// of one that continues behind it.
int64_t decode_slots(const DecodePlan &plan, int64_t n_tiles) {
  return std::max<int64_t>(plan.splits > 1 ? n_tiles * plan.splits : 0,
                           plan.is_even ? 0 : 2 * plan.n_ranges);
}

int64_t slot_bytes(const TileSizes &tiles) {
  return tiles.B_r * (tiles.d_head + kStatsPerRow) * kFloatBytes;
}

DecodeProblem decode_problem(const Variant &variant, const DecodeTensors &tensors,
                             const ForwardProblem &problem, const Numbers &numbers,
                             const DecodeNumbers &own, const DecodePlan &plan,
                             const TileSizes &tiles) {
  const int64_t n_tiles = decode_tiles(problem, tiles.B_r);
  DecodeProblem args{
      problem_args(variant, tensors.forward(), problem, numbers),
      cache_args(tensors.k_cache(), tensors.block_table(), tensors.cache_batch_idx()),
      {},
      divisor(problem.n_heads / problem.n_heads_kv),
      divisor(tiles_of_head(problem, tiles.B_r)),
      divisor(n_tiles / std::max(problem.batch, 1)),
      divisor(n_tiles)};
  args.cache.leftpad = data_of(tensors.cache_leftpad());
  args.cache.n_new = static_cast<int>(own.n_new);
  args.queue = args.tiles = nullptr;  // the workspace is for partial results
  args.split.is_fixed = own.splits > 0;
  args.split.splits = divisor(plan.splits);
  args.split.n_ranges = divisor(plan.n_ranges);
  args.split.times = plan.times;
  args.split.is_even = plan.is_even;
  args.split.next_begins_early = plan.next_begins_early;
  args.split.next_begins_early_behind_ranges = plan.next_begins_early_behind_ranges;
  const int64_t rows = decode_slots(plan, n_tiles) * tiles.B_r;
  if (rows == 0) return args;
  args.split.partial_O = static_cast<float *>(tensors.workspace()->data_ptr());
  args.split.partial_stats = args.split.partial_O + rows * tiles.d_head;
  args.split.combine_groups = plan.combine_groups;
  float *end = args.split.partial_stats + rows * kStatsPerRow;
  if (plan.counter_bytes > 0) {
    args.split.arrivals = static_cast<uint32_t *>(tensors.counters()->data_ptr());
    args.split.polls = plan.polls;
  } else {
    args.split.split_tiles = reinterpret_cast<uint32_t *>(end);
  }
  return args;
}

}  // namespace flashsmith
