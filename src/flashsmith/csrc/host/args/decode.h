// The arguments of the operation `decode`: few queries a request, over the keys of a cache.
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

// With the names that `attention` has for them, of which decode's kernels serve calls, too.
inline constexpr std::array kDecodeArgumentsOfAttention = [] {
  std::array arguments = kDecodeArguments;
  arguments[place_of(kDecodeArguments, "k_cache")].name = "k";
  arguments[place_of(kDecodeArguments, "v_cache")].name = "v";
  return arguments;
}();

// The tensors of one call, in the order of the table; null: not given.
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

  void set_workspace(const View *workspace) { given_[place("workspace")] = workspace; }

  // What the caller calls the cache, and the lengths in it.
  const char *k_name() const { return table_[place("k_cache")].name; }
  const char *v_name() const { return table_[place("v_cache")].name; }
  const char *lengths_name() const {
    return table_.data() == kDecodeArguments.data() ? "cache_seqlens" : "seqused_k";
  }

  // As those of a forward, whose keys and values are the whole cache.
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

// Numbers of a call beside those that every operation has. splits: of each work tile; 0: all blocks
// have as much to do. n_new: keys of each request behind those that lengths tell of. of_attention:
// messages name arguments as `attention` does.
struct DecodeNumbers {
  int64_t splits = 0, n_new = 0;
  bool of_attention = false;
};

inline int64_t quotient_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// See SplitArgs.
struct DecodePlan : Plan {
  int even_splits = 1, splits_of_SM = 1, blocks_of_SM = 1, combine_groups = 1;
  bool is_even = false;
};

// seq_len_k: the rows that a request may have.
ForwardProblem problem_of(const DecodeTensors &tensors);

// Packed rows of Q of a head of the cache.
int64_t rows_of_head(const ForwardProblem &problem);

// Work tiles: blocks of B_r packed rows of one head of the cache, of all heads and requests.
int64_t decode_tiles(const ForwardProblem &problem, int B_r);

// What kernels of every family are told alike.
DecodeProblem decode_problem(const Variant &variant, const DecodeTensors &tensors,
                             const ForwardProblem &problem, const Numbers &numbers,
                             const DecodeNumbers &own, const DecodePlan &plan,
                             const TileSizes &tiles);

// Rows that a request may have: of one entry, or of all pages of its row of the table.
int64_t cache_rows(const tvm::ffi::TensorView &k_cache, const tvm::ffi::TensorView *block_table);

// A cache, the pages of requests or null, and their entries or null.
CacheArgs cache_args(const tvm::ffi::TensorView &k_cache, const tvm::ffi::TensorView *block_table,
                     const tvm::ffi::TensorView *batch_idx);

// Dimensions of per-token scales: (entries, rows, n_heads_kv).
constexpr int kTokenScaleRank = 3;

// Where a cache's per-token scales are, if they are.
RowScales row_scale_args(const tvm::ffi::TensorView *scale);

// Where splits store their partial results.
int64_t decode_slots(const DecodeNumbers &own, int64_t n_tiles, int64_t blocks);
int64_t slot_bytes(const TileSizes &tiles);

}  // namespace flashsmith
