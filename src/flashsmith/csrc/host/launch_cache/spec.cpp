#include "host/launch_cache/spec.h"

#include <tvm/ffi/any.h>

#include <algorithm>
#include <cmath>

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::TensorView;

// The limits of flashsmith/ops/checks.py: numbers between them stay normal in the kernels' FP32
// arithmetic.
constexpr double kSmallest = 1e-37, kLargest = 1e37;

bool is_normal(double value) { return kSmallest <= value && value <= kLargest; }  // false for NaN

// The rows of queries, or of keys.
struct Side {
  int64_t rows;     // of the tensor
  int64_t longest;  // max length of a sequence
};

// Returns none if Python has to look at the max length that was passed, or to refuse it.
std::optional<Side> side_of(const Spec &spec, int64_t rows, Field longest, Field offsets,
                            Field used) {
  if (!spec.has(longest)) return Side{rows, rows};
  const std::optional<int64_t> given = integer_of(spec[longest]);
  // Python compares it with lengths that the host knows.
  if (!given || *given < 0 || !(spec.has(offsets) || spec.has(used))) return std::nullopt;
  return Side{rows, std::min(rows, *given)};
}

// Returns the rows of keys that each sequence may have; none if k lacks the dimensions.
std::optional<int64_t> rows_of_k(const Spec &spec, const TensorView &k) {
  const bool is_packed = spec.has(Field::cu_seqlens_k);
  if (k.ndim() != kMaxRank - (is_packed ? 1 : 0)) return std::nullopt;
  const int64_t rows = k.size(is_packed ? 0 : kSequence);
  if (!spec.has(Field::block_table)) return rows;
  const std::optional<TensorView> table = tensor_of(spec[Field::block_table]);
  if (!table || table->ndim() != 2 || is_packed) return std::nullopt;
  return rows * table->size(1);
}

int64_t sequences_of(const Spec &spec, const TensorView &q) {
  for (const Field field : {Field::cu_seqlens_q, Field::cu_seqlens_k}) {
    if (!spec.has(field)) continue;
    const std::optional<TensorView> offsets = tensor_of(spec[field]);
    return offsets ? std::max<int64_t>(offsets->numel() - 1, 0) : 0;
  }
  return q.size(kBatch);
}

// Sets dropout's numbers. Returns whether kernels take them.
bool take_dropout(const Spec &spec, Numbers &numbers) {
  const std::optional<double> share = number_of(spec[Field::dropout_p]);
  if (!share) return false;
  numbers.dropout_p = *share;
  return *share == 0 ? !spec.has(Field::rng_state)
                     : *share > 0 && *share < 1 && spec.has(Field::rng_state);
}

// Sets the window, without bounds that exclude no key.
bool take_window(const Spec &spec, bool causal, int64_t n_q, int64_t n_k, Numbers &numbers) {
  const std::optional<std::array<int64_t, 2>> window = window_of(spec[Field::window_size]);
  if (!window) return false;
  auto [left, right] = *window;
  if (causal) right = 0;
  // The last query has the most keys behind its diagonal, the first query the most ahead.
  const int64_t reach_left = numbers.top_left ? n_q : n_k,
                reach_right = numbers.top_left ? n_k : n_q;
  numbers.window_left = left >= reach_left - 1 ? -1 : left;
  numbers.window_right = right >= reach_right - 1 && !causal ? -1 : right;
  return true;
}

// Returns whether the call has a tensor that Python converts before a kernel takes it.
bool has_what_is_converted(const Spec &spec, int64_t n_k) {
  constexpr DLDataType kFloat32{.code = kDLFloat, .bits = 32, .lanes = 1};
  if (spec.has(Field::sinks)) {
    const std::optional<TensorView> sinks = tensor_of(spec[Field::sinks]);
    if (!sinks || sinks->dtype() != kFloat32) return true;
  }
  if (!spec.has(Field::bias)) return false;
  const std::optional<TensorView> bias = tensor_of(spec[Field::bias]);
  return !bias || bias->ndim() != kMaxRank || (bias->size(kMaxRank - 1) == 1 && n_k != 1);
}

uint32_t features_of(const Spec &spec, const Numbers &numbers, bool is_varlen, bool is_cache) {
  const bool features[] = {numbers.window_left >= 0,
                           numbers.window_right >= 0,
                           numbers.softcap > 0,
                           spec.has(Field::alibi_slopes),
                           spec.has(Field::bias),
                           spec.has(Field::sinks),
                           spec.has(Field::rng_state),
                           is_varlen,
                           is_cache,
                           spec.has(Field::block_table)};
  uint32_t bits = 0;
  for (const bool feature : features) bits = bits << 1 | (feature ? 1 : 0);
  return bits;
}

}  // namespace

std::optional<TensorView> tensor_of(AnyView given) { return given.try_cast<TensorView>(); }

std::optional<int64_t> integer_of(AnyView given) { return given.as<int64_t>(); }

std::optional<bool> flag_of(AnyView given) { return given.as<bool>(); }

std::optional<double> number_of(AnyView given) {
  if (const std::optional<double> value = given.as<double>()) return value;
  if (const std::optional<int64_t> value = given.as<int64_t>()) return static_cast<double>(*value);
  return std::nullopt;
}

std::optional<double> scale_of(AnyView given, int64_t d_head) {
  if (given == nullptr) return std::pow(static_cast<double>(d_head), -0.5);
  const std::optional<double> scale = number_of(given);
  return scale && is_normal(*scale) ? scale : std::nullopt;
}

std::optional<double> softcap_of(AnyView given) {
  const std::optional<double> cap = number_of(given);
  return cap && (*cap == 0 || is_normal(*cap)) ? cap : std::nullopt;
}

std::optional<std::array<int64_t, 2>> window_of(AnyView given) {
  const std::optional<Array<Any>> sides = given.as<Array<Any>>();
  if (!sides || sides->size() != 2) return std::nullopt;
  std::array<int64_t, 2> window{};
  for (size_t i = 0; i < window.size(); i++) {
    const std::optional<int64_t> side = integer_of((*sides)[static_cast<int64_t>(i)]);
    if (!side || *side < -1) return std::nullopt;
    window[i] = *side;
  }
  return window;
}

std::optional<ResolvedSpec> ResolvedSpec::of(const Spec &spec, const TensorView &q,
                                             const TensorView &k) {
  const std::optional<bool> causal = flag_of(spec[Field::causal]);
  const bool is_packed = spec.has(Field::cu_seqlens_q);
  if (!causal || q.ndim() != kMaxRank - (is_packed ? 1 : 0)) return std::nullopt;
  const std::optional<int64_t> rows_k = rows_of_k(spec, k);
  const std::optional<double> scale = scale_of(spec[Field::softmax_scale], q.size(q.ndim() - 1));
  if (!rows_k || !scale) return std::nullopt;

  ResolvedSpec resolved;
  Numbers &numbers = resolved.numbers;
  numbers.softmax_scale = *scale;
  numbers.window_right = *causal ? 0 : -1;
  const int64_t rows_q = q.size(is_packed ? 0 : kSequence);
  resolved.batch = sequences_of(spec, q);
  if (spec.is_short()) {
    resolved.n_q = rows_q;
    resolved.n_k = *rows_k;
    resolved.features = features_of(spec, numbers, false, true);
    return resolved;
  }
  const auto of_q =
      side_of(spec, rows_q, Field::max_seqlen_q, Field::cu_seqlens_q, Field::seqused_q);
  const auto of_k =
      side_of(spec, *rows_k, Field::max_seqlen_k, Field::cu_seqlens_k, Field::seqused_k);
  const std::optional<bool> top_left = flag_of(spec[Field::top_left]);
  const std::optional<double> softcap = softcap_of(spec[Field::softcap]);
  const std::optional<int64_t> score = integer_of(spec[Field::score]);
  const std::optional<int64_t> rows_per_range = integer_of(spec[Field::rows_per_range]);
  if (!of_q || !of_k || !top_left || !softcap || !score || !rows_per_range) return std::nullopt;
  resolved.n_q = of_q->longest;
  resolved.n_k = of_k->longest;
  numbers.top_left = *top_left;
  numbers.softcap = *softcap;
  numbers.score = *score;
  numbers.rows_per_range = *rows_per_range;
  if (!take_window(spec, *causal, resolved.n_q, resolved.n_k, numbers) ||
      !take_dropout(spec, numbers) || has_what_is_converted(spec, *rows_k)) {
    return std::nullopt;
  }
  const bool used_q = spec.has(Field::seqused_q);
  const bool is_varlen =
      is_packed || spec.has(Field::cu_seqlens_k) || used_q || spec.has(Field::seqused_k);
  if (is_varlen) {
    numbers.max_seqlen_q = resolved.n_q;
    numbers.max_seqlen_k = resolved.n_k;
  }
  const bool has_scales =
      spec.has(Field::q_scale) || spec.has(Field::k_scale) || spec.has(Field::v_scale);
  const bool is_cache = resolved.n_q == rows_q && !is_packed && !spec.has(Field::cu_seqlens_k) &&
                        !used_q && !spec.has(Field::block_table) && !*top_left && !has_scales;
  resolved.features = features_of(spec, numbers, is_varlen, is_cache);
  return resolved;
}

AnyView *put_extras(const Spec &spec, const Numbers &numbers, AnyView *to) {
  for (const Field field : {Field::alibi_slopes, Field::bias, Field::sinks, Field::cu_seqlens_q,
                            Field::cu_seqlens_k, Field::seqused_q, Field::seqused_k,
                            Field::key_ranges, Field::rng_state, Field::mod_tensors}) {
    *to++ = spec[field];
  }
  return put_numbers(numbers, to);
}

AnyView *put_numbers(const Numbers &numbers, AnyView *to) {
  const AnyView told[] = {numbers.softcap,  numbers.window_left,    numbers.window_right,
                          numbers.top_left, numbers.max_seqlen_q,   numbers.max_seqlen_k,
                          numbers.score,    numbers.rows_per_range, numbers.dropout_p};
  return std::ranges::copy(told, to).out;
}

}  // namespace flashsmith
