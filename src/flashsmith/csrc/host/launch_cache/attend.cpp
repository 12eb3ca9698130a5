// Calls of `attention` and `forward`.
#include <optional>

#include "host/args/decode.h"
#include "host/args/forward.h"
#include "host/launch_cache/known.h"
#include "host/launch_cache/launch_cache.h"
#include "host/launch_cache/spec.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;
using tvm::ffi::TensorView;

enum Argument_ : int { kConfig, kQ, kK, kV, kO, kLse, kMakesO, kSpec };

struct AttentionCall {
  PackedArgs arguments;
  Spec spec;
  TensorView q, k, v, o;
  Numbers numbers;
  CallKey key;

  bool makes_o() const { return arguments[kMakesO].cast<bool>(); }
};

CallKey key_of(const AttentionCall &call, const ResolvedSpec &resolved) {
  const auto &[arguments, spec, q, k, v, o, numbers, unused] = call;
  constexpr int kByte = 8;
  const int heads = q.ndim() - 2;
  CallKey key;
  key.add(arguments[kConfig].cast<int64_t>());
  key.add(resolved.features, q.dtype().code << kByte | q.dtype().bits);
  key.add(numbers.score);
  key.add(q.device().device_type, q.device().device_id);
  key.add(q.size(heads), v.size(v.ndim() - 2));
  key.add(q.size(heads + 1), v.size(v.ndim() - 1));
  key.add(size_class(resolved.batch));
  key.add(size_class(resolved.n_q), size_class(resolved.n_k));
  if (q.dtype().bits > kByte) return key;
  // The dtype of q does not determine the dtypes of the others.
  const DLDataType of_v = v.dtype(), of_o = call.makes_o() ? DLDataType{} : o.dtype();
  key.add(of_v.code << kByte | of_v.bits, of_o.code << kByte | of_o.bits);
  return key;
}

// Returns none if Python has to look at the call.
std::optional<AttentionCall> call_of(PackedArgs arguments) {
  if (!Spec::has_size(arguments.size() - kSpec)) return std::nullopt;
  const auto q = tensor_of(arguments[kQ]), k = tensor_of(arguments[kK]);
  const auto v = tensor_of(arguments[kV]), o = tensor_of(arguments[kO]);
  const Spec spec(arguments.Slice(kSpec));
  if (!q || !k || !v || !o || v->ndim() != k->ndim()) return std::nullopt;
  const std::optional<ResolvedSpec> resolved = ResolvedSpec::of(spec, *q, *k);
  if (!resolved) return std::nullopt;
  AttentionCall call{arguments, spec, *q, *k, *v, *o, resolved->numbers, {}};
  // Rows that no sequence has must be zero in a new o, and -inf in lse.
  if (spec.has(Field::seqused_q) && call.makes_o()) return std::nullopt;
  call.key = key_of(call, *resolved);
  return call;
}

// Makes the call with the function that `bind` of a forward kernel returned
// (host/operations/forward.cpp).
bool launch_forward(const Launcher &launcher, const AttentionCall &call, const Memory &memory) {
  constexpr size_t kOwn = kForwardOwn.size() + 3;  // stream, workspace and scale
  std::array<AnyView, kOwn + kCallArgs> told;
  const Spec &spec = call.spec;
  AnyView *next = told.data();
  *next++ = memory.stream;
  for (const int i : {kQ, kK, kV, kO, kLse}) *next++ = call.arguments[i];
  for (const Field field : {Field::q_scale, Field::k_scale, Field::v_scale, Field::block_table}) {
    *next++ = spec[field];
  }
  *next++ = memory.workspace;
  *next++ = call.numbers.softmax_scale;
  put_extras(spec, call.numbers, next);
  Any made;
  launcher.call.CallPacked(told.data(), static_cast<int>(told.size()), &made);
  return made.cast<bool>();
}

// Makes the call with the function that `bind` of a decode kernel returned
// (host/operations/decode.cpp).
bool launch_split_kv(const Launcher &launcher, const AttentionCall &call, const Memory &memory) {
  constexpr size_t kOwn = kDecodeOwn.size() + 3;  // stream, workspace and scale
  std::array<AnyView, kOwn + kCallArgs> told;
  AnyView *next = told.data();
  *next++ = memory.stream;
  for (const int i : {kQ, kK, kV, kO, kLse}) *next++ = call.arguments[i];
  next = told.data() + 1 + place_of(kDecodeArguments, "counters");  // cache arguments are None
  *next++ = memory.counters;
  *next++ = memory.workspace;
  *next++ = call.numbers.softmax_scale;
  put_extras(call.spec, call.numbers, next);
  Any made;
  launcher.call.CallPacked(told.data(), static_cast<int>(told.size()), &made);
  return made.cast<bool>();
}

}  // namespace

int64_t attend(const KnownLaunchers &known, PackedArgs arguments) {
  const std::optional<AttentionCall> call = call_of(arguments);
  if (!call) return kUnknown;
  const std::shared_ptr<Launcher> launcher = known.find(call->key);
  if (!launcher) return kUnknown;
  const DLDataType o_dtype = launcher->o_dtype;
  const TensorView &o = call->o, &v = call->v;
  if (call->makes_o() && (o.dtype() != o_dtype || o.size(o.ndim() - 1) != v.size(v.ndim() - 1))) {
    return o_dtype.code == kDLBfloat ? kBfloatO : kHalfO;
  }
  const Memory memory = launcher->memory_on(call->q.device());
  const auto launch = launcher->by_split_kv ? launch_split_kv : launch_forward;
  return launch(*launcher, *call, memory) ? kMade : kUnknown;
}

void remember_attend(KnownLaunchers &known, PackedArgs arguments) {
  const std::optional<AttentionCall> call = call_of(arguments.Slice(kOfMaking));
  if (call) known.remember(call->key, arguments, call->o.dtype());
}

}  // namespace flashsmith
