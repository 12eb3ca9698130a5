// The specification of what a call computes, as Python passes it: `AttentionSpec` of
// flashsmith/ops/spec.py.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <array>
#include <optional>

#include "host/args/semantics.h"
#include "host/launch_cache/call_key.h"

namespace flashsmith {

// The fields, in order.
enum class Field : int {
  causal,
  softmax_scale,
  window_size,
  softcap,
  alibi_slopes,
  sinks,
  bias,
  top_left,
  cu_seqlens_q,
  cu_seqlens_k,
  max_seqlen_q,
  max_seqlen_k,
  seqused_q,
  seqused_k,
  block_table,
  score,
  mod_tensors,
  key_ranges,
  rows_per_range,
  dropout_p,
  rng_state,
  q_scale,
  k_scale,
  v_scale
};
inline constexpr std::array kFieldNames = {
    "causal",       "softmax_scale", "window_size", "softcap",        "alibi_slopes",
    "sinks",        "bias",          "top_left",    "cu_seqlens_q",   "cu_seqlens_k",
    "max_seqlen_q", "max_seqlen_k",  "seqused_q",   "seqused_k",      "block_table",
    "score",        "mod_tensors",   "key_ranges",  "rows_per_range", "dropout_p",
    "rng_state",    "q_scale",       "k_scale",     "v_scale"};
static_assert(kFieldNames.size() == static_cast<size_t>(Field::v_scale) + 1);

// The following functions return a value of their type, or none: a bool is no number, and a number
// of another type is no float.
std::optional<tvm::ffi::TensorView> tensor_of(tvm::ffi::AnyView given);
std::optional<double> number_of(tvm::ffi::AnyView given);
std::optional<int64_t> integer_of(tvm::ffi::AnyView given);
std::optional<bool> flag_of(tvm::ffi::AnyView given);

// Returns a softmax_scale; for None, 1 / sqrt(d_head). Returns none for a value that Python
// refuses.
std::optional<double> scale_of(tvm::ffi::AnyView given, int64_t d_head);

// Returns a softcap, where 0 is no cap. Returns none for a value that Python refuses.
std::optional<double> softcap_of(tvm::ffi::AnyView given);

// Returns the sides of a window, (left, right). Returns none for a value that Python refuses.
std::optional<std::array<int64_t, 2>> window_of(tvm::ffi::AnyView given);

// The fields of a call, one by one; or only the first two, if the others have their default values.
class Spec {
  tvm::ffi::PackedArgs given_;

 public:
  explicit Spec(tvm::ffi::PackedArgs given) : given_(given) {}

  static bool has_size(int n_given) {
    return n_given == 2 || n_given == static_cast<int>(kFieldNames.size());
  }
  tvm::ffi::AnyView operator[](Field field) const {
    const int i = static_cast<int>(field);
    return i < given_.size() ? given_[i] : tvm::ffi::AnyView();
  }
  bool has(Field field) const { return (*this)[field] != nullptr; }
  bool is_short() const { return given_.size() == 2; }
};

// The resolved specification of a call on q and k, like `resolve` of flashsmith/ops/spec.py.
struct ResolvedSpec {
  Numbers numbers;
  int64_t batch = 0, n_q = 0, n_k = 0;  // sequences, and their max lengths
  uint32_t features = 0;                // the features that distinguish kernels, a bit each

  // Returns none if Python has to look at the call, either to make it or to refuse it.
  static std::optional<ResolvedSpec> of(const Spec &spec, const tvm::ffi::TensorView &q,
                                        const tvm::ffi::TensorView &k);
};

// The following functions write a call's extras, in order, or the numbers among them, to `to`, and
// return the place behind them.
tvm::ffi::AnyView *put_extras(const Spec &spec, const Numbers &numbers, tvm::ffi::AnyView *to);
tvm::ffi::AnyView *put_numbers(const Numbers &numbers, tvm::ffi::AnyView *to);

}  // namespace flashsmith
