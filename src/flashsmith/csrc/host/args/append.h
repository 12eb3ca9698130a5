// The arguments of the operation `append`: new keys and values are appended to a KV cache, and
// queries get the same rotary embedding as the keys.
#pragma once

#include "host/args/decode.h"

namespace flashsmith {

// clang-format off
inline constexpr std::array kAppendOwn = {
    Argument{.name = "k_new", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_head},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "v_new", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_v},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "k_cache", .dims = {Dim::entries, Dim::rows, Dim::n_heads_kv, Dim::d_head},
             .element = Element::of_cache, .layout = Layout::rows, .use = Use::written},
    Argument{.name = "v_cache", .dims = {Dim::entries, Dim::rows, Dim::n_heads_kv, Dim::d_v},
             .element = Element::of_cache, .layout = Layout::rows, .use = Use::written},
    Argument{.name = "q", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_head},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::read,
             .optional = true},
    Argument{.name = "q_turned", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_head},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::written,
             .optional = true},
    Argument{.name = "rotary_cos", .dims = {},
             .element = Element::of_config, .use = Use::read, .optional = true},
    Argument{.name = "rotary_sin", .dims = {},
             .element = Element::of_config, .use = Use::read, .optional = true},
    Argument{.name = "cache_seqlens", .dims = {Dim::batch},
             .element = Element::int32, .use = Use::read},
    Argument{.name = "block_table", .dims = {},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "cache_batch_idx", .dims = {Dim::batch},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "k_scale", .dims = {},
             .element = Element::float32, .use = Use::read, .optional = true},
    Argument{.name = "v_scale", .dims = {},
             .element = Element::float32, .use = Use::read, .optional = true},
};
// clang-format on
inline constexpr std::array kAppendArguments = with_semantics(kAppendOwn);

// The tensors of one call, in the order of the table; null: not passed.
class AppendTensors {
 public:
  using View = tvm::ffi::TensorView;
  using Given = std::array<const View *, kAppendArguments.size()>;

  static consteval size_t place(std::string_view name) { return place_of(kAppendArguments, name); }

  explicit AppendTensors(const Given &given) : given_(given) {}

  const View &k() const { return *given_[place("k_new")]; }
  const View &v() const { return *given_[place("v_new")]; }
  const View &k_cache() const { return *given_[place("k_cache")]; }
  const View &v_cache() const { return *given_[place("v_cache")]; }
  const View *q() const { return given_[place("q")]; }
  const View *q_turned() const { return given_[place("q_turned")]; }
  const View *rotary_cos() const { return given_[place("rotary_cos")]; }
  const View *rotary_sin() const { return given_[place("rotary_sin")]; }
  const View &cache_seqlens() const { return *given_[place("cache_seqlens")]; }
  const View *block_table() const { return given_[place("block_table")]; }
  const View *cache_batch_idx() const { return given_[place("cache_batch_idx")]; }
  const View *k_scale() const { return given_[place("k_scale")]; }
  const View *v_scale() const { return given_[place("v_scale")]; }

  Tensors all() const { return {kAppendArguments, given_}; }

  AppendTensors without_k_cache() const { return without(place("k_cache")); }
  AppendTensors without_v_cache() const { return without(place("v_cache")); }

 private:
  AppendTensors without(size_t i) const {
    Given others = given_;
    others[i] = nullptr;
    return AppendTensors(others);
  }

  Given given_;
};

// `interleaved`: pairs of elements are neighbours. `queries_in_a_row`: query i has the position of
// new key i; else all queries have the position of key 0.
struct AppendNumbers {
  bool interleaved = true, queries_in_a_row = false;
};

AppendKernelArgs append_args(const AppendTensors &tensors, const AppendNumbers &numbers);

// Returns the number of chunks of rows to move, one for each thread.
int64_t append_chunks(const AppendTensors &tensors);

}  // namespace flashsmith
