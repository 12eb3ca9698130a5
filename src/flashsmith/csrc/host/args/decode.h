// The arguments of the operation `decode`: few queries a request, over the keys of a KV cache.
#pragma once

#include "flashsmith/decode_params.h"
#include "host/args/forward.h"
#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith {

// clang-format off
inline constexpr std::array kDecodeOwn = {
    Argument{.name = "q", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_head},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "k_cache", .dims = {Dim::entries, Dim::rows, Dim::n_heads_kv, Dim::d_head},
             .element = Element::of_cache, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "v_cache", .dims = {Dim::entries, Dim::rows, Dim::n_heads_kv, Dim::d_v},
             .element = Element::of_cache, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "o", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_v},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::written},
    Argument{.name = "lse", .dims = {Dim::batch, Dim::n_heads, Dim::seq_len_q},
             .element = Element::float32, .use = Use::written, .optional = true},
    Argument{.name = "block_table", .dims = {},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "cache_batch_idx", .dims = {Dim::batch},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "cache_leftpad", .dims = {Dim::batch},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "k_scale", .dims = {},
             .element = Element::float32, .use = Use::read, .optional = true},
    Argument{.name = "v_scale", .dims = {},
             .element = Element::float32, .use = Use::read, .optional = true},
    Argument{.name = "counters", .dims = {},
             .element = Element::any, .use = Use::scratch, .optional = true},
};
// clang-format on
inline constexpr std::array kDecodeArguments = with_semantics(kDecodeOwn);

// The same arguments with the names that they have in `attention`, whose calls decode's kernels
// serve, too.
inline constexpr std::array kDecodeArgumentsOfAttention = [] {
  std::array arguments = kDecodeArguments;
  arguments[place_of(kDecodeArguments, "k_cache")].name = "k";
  arguments[place_of(kDecodeArguments, "v_cache")].name = "v";
  return arguments;
}();

// The tensors of one call, in the order of the table; null: not passed.
class DecodeTensors {
 public:
  using View = tvm::ffi::TensorView;
  using Given = std::array<const View *, kDecodeArguments.size()>;

  static consteval size_t place(std::string_view name) { return place_of(kDecodeArguments, name); }

  DecodeTensors(const Given &given, std::span<const Argument> table)
      : given_(given), table_(table) {}

  const View &q() const { return *given_[place("q")]; }
  const View &k_cache() const { return *given_[place("k_cache")]; }
  const View &v_cache() const { return *given_[place("v_cache")]; }
  const View *block_table() const { return given_[place("block_table")]; }
  const View *cache_batch_idx() const { return given_[place("cache_batch_idx")]; }
  const View *cache_leftpad() const { return given_[place("cache_leftpad")]; }
  const View *k_scale() const { return given_[place("k_scale")]; }
  const View *v_scale() const { return given_[place("v_scale")]; }
  const View *counters() const { return given_[place("counters")]; }
  const View *workspace() const { return given_[place("workspace")]; }

  // Returns whether all requests surely have as many rows as the cache.
  bool have_equal_lengths() const { return !forward().seqused_k() && !cache_leftpad(); }

  void set_workspace(const View *workspace) { given_[place("workspace")] = workspace; }

  // The following functions return the caller's names for the cache, and for the lengths in it.
  const char *k_name() const { return table_[place("k_cache")].name; }
  const char *v_name() const { return table_[place("v_cache")].name; }
  const char *lengths_name() const {
    return table_.data() == kDecodeArguments.data() ? "cache_seqlens" : "seqused_k";
  }

  // Returns the tensors of a forward whose keys and values are the whole cache.
  ForwardTensors forward() const {
    ForwardTensors::Given forward{};
    std::copy_n(given_.begin(), kForwardShared, forward.begin());
    std::copy(given_.begin() + kDecodeOwn.size(), given_.end(),
              forward.begin() + kForwardOwn.size());
    return ForwardTensors(forward);
  }

  Tensors all() const { return {table_, given_}; }

 private:
  Given given_;
  std::span<const Argument> table_;
};

// The numbers of a call beside those that every operation has. `splits`: splits of each work tile;
// 0: the kernel balances. `n_new`: keys of each request behind those that lengths count.
// `of_attention`: messages name arguments as `attention` does.
struct DecodeNumbers {
  int64_t splits = 0, n_new = 0;
  bool of_attention = false;
};

inline int64_t quotient_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// A plan with the schedule of SplitArgs.
struct DecodePlan : Plan {
  int splits = 1, n_ranges = 1, combine_groups = 1, polls = 0;
  SplitTimes times{};
  bool is_even = false, next_begins_early = true, next_begins_early_behind_ranges = true;
};

// Returns the sizes of a call; seq_len_k is the max number of rows of a request.
ForwardProblem problem_of(const DecodeTensors &tensors);

// Returns the number of packed GQA rows of a head of the cache.
int64_t rows_of_head(const ForwardProblem &problem);

// Returns the number of work tiles of a head of the cache: blocks of up to B_r packed GQA rows.
int64_t tiles_of_head(const ForwardProblem &problem, int B_r);

// Returns the number of work tiles over all heads and requests.
int64_t decode_tiles(const ForwardProblem &problem, int B_r);

// Returns the arguments that the kernels of every family share.
DecodeProblem decode_problem(const Variant &variant, const DecodeTensors &tensors,
                             const ForwardProblem &problem, const Numbers &numbers,
                             const DecodeNumbers &own, const DecodePlan &plan,
                             const TileSizes &tiles);

// Returns the max number of rows of a request: those of one slot, or of all pages in its row of the
// page table.
int64_t cache_rows(const tvm::ffi::TensorView &k_cache, const tvm::ffi::TensorView *block_table);

// Returns the arguments of a cache, with the page table or null, and the slots of requests or null.
CacheArgs cache_args(const tvm::ffi::TensorView &k_cache, const tvm::ffi::TensorView *block_table,
                     const tvm::ffi::TensorView *batch_idx);

// The rank of per-token scales: (slots, rows, n_heads_kv).
constexpr int kTokenScaleRank = 3;

// Returns the layout of a cache's per-token scales, if it has them.
RowScales row_scale_args(const tvm::ffi::TensorView *scale);

// The following functions return the number of slots for partial results, and the bytes of a slot.
int64_t decode_slots(const DecodePlan &plan, int64_t n_tiles);
int64_t slot_bytes(const TileSizes &tiles);

}  // namespace flashsmith
