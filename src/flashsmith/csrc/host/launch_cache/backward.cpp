// Calls of `backward`, and the gradients of `attention`.
#include "host/args/backward.h"

#include <algorithm>
#include <optional>

#include "host/launch_cache/known.h"
#include "host/launch_cache/launch_cache.h"
#include "host/launch_cache/spec.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::PackedArgs;
using tvm::ffi::TensorView;

constexpr int kTensors = kBackwardOwn.size();
enum Argument_ : int { kConfig, kDeterministic, kAreNew, kQ, kK, kV, kSpec = kQ + kTensors };

struct GradientCall {
  PackedArgs arguments;
  Spec spec;
  TensorView q, v;
  Numbers numbers;
  CallKey key;
};

// Returns whether sequences are of unlike lengths, as far as the host knows.
bool are_unlike(const GradientCall &call, const ResolvedSpec &resolved) {
  const Spec &spec = call.spec;
  if (spec.has(Field::seqused_q) || spec.has(Field::seqused_k)) return true;
  const auto unlike = [&](Field offsets, const TensorView &t, int64_t longest) {
    const double mean = static_cast<double>(t.size(0)) / std::max<int64_t>(resolved.batch, 1);
    return spec.has(offsets) && !are_alike(mean, static_cast<double>(longest));
  };
  return unlike(Field::cu_seqlens_q, call.q, resolved.n_q) ||
         unlike(Field::cu_seqlens_k, call.v, resolved.n_k);
}

CallKey key_of(const GradientCall &call, const ResolvedSpec &resolved) {
  constexpr int kByte = 8;
  const auto &[arguments, spec, q, v, numbers, unused] = call;
  const int heads = q.ndim() - 2, heads_kv = v.ndim() - 2;
  CallKey key;
  key.add(arguments[kConfig].cast<int64_t>());
  key.add(arguments[kDeterministic].cast<bool>(), resolved.features);
  key.add(numbers.score);
  key.add(q.dtype().code << kByte | q.dtype().bits);
  key.add(q.device().device_type, q.device().device_id);
  key.add(q.size(heads), v.size(heads_kv));
  key.add(q.size(heads + 1), v.size(heads_kv + 1));
  key.add(size_class(resolved.batch), are_unlike(call, resolved));
  key.add(size_class(resolved.n_q), size_class(resolved.n_k));
  return key;
}

// Returns none if Python has to look at the call.
std::optional<GradientCall> call_of(PackedArgs arguments) {
  if (!Spec::has_size(arguments.size() - kSpec)) return std::nullopt;
  const auto q = tensor_of(arguments[kQ]), k = tensor_of(arguments[kK]);
  const auto v = tensor_of(arguments[kV]);
  const Spec spec(arguments.Slice(kSpec));
  if (!q || !k || !v || v->ndim() != k->ndim() || k->numel() == 0) return std::nullopt;
  const std::optional<ResolvedSpec> resolved = ResolvedSpec::of(spec, *q, *k);
  if (!resolved) return std::nullopt;
  GradientCall call{arguments, spec, *q, *v, resolved->numbers, {}};
  call.key = key_of(call, *resolved);
  return call;
}

}  // namespace

int64_t backward(const KnownLaunchers &known, PackedArgs arguments) {
  const std::optional<GradientCall> call = call_of(arguments);
  if (!call) return kUnknown;
  const std::shared_ptr<Launcher> launcher = known.find(call->key);
  if (!launcher) return kUnknown;
  // These are the arguments of the function that `bind` of a backward kernel returned
  // (host/operations/backward.cpp).
  std::array<AnyView, 1 + kTensors + 2 + kCallArgs> told;
  AnyView *next = told.data();
  *next++ = arguments[kAreNew];  // dq, dk and dv
  for (int i = 0; i < kTensors; i++) *next++ = arguments[kQ + i];
  *next++ = AnyView();  // the library allocates the workspace
  *next++ = call->numbers.softmax_scale;
  put_extras(call->spec, call->numbers, next);
  Any nothing;
  launcher->call.CallPacked(told.data(), static_cast<int>(told.size()), &nothing);
  return kMade;
}

void remember_backward(KnownLaunchers &known, PackedArgs arguments) {
  const std::optional<GradientCall> call = call_of(arguments.Slice(kOfMaking));
  if (call) known.remember(call->key, arguments);
}

}  // namespace flashsmith
