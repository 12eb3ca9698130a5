// Calls of `decode`.
#include "host/args/decode.h"

#include <optional>

#include "flashsmith/sm90/arguments.cuh"
#include "host/args/append.h"
#include "host/launch_cache/known.h"
#include "host/launch_cache/launch_cache.h"
#include "host/launch_cache/spec.h"
#include "host/tensor_map.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::PackedArgs;
using tvm::ffi::TensorView;

// The arguments of `decode` (launch_cache.h). A call that appends has the new keys behind them.
// clang-format off
enum Argument_ : int {
  kConfig, kQ, kO, kLse,
  kK, kV, kSeqlens, kBlockTable, kBatchIdx, kLeftpad, kKScale, kVScale,
  kCausal, kWindow, kSoftcap, kSplits, kSoftmaxScale,
  kAlibiSlopes, kSinks, kScore, kModTensors,
  kKNew, kVNew, kRotaryCos, kRotarySin, kInterleaved, kQTurned, kAll
};
// clang-format on

constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;  // of a tensor, counted in row strides

struct CacheCall {
  PackedArgs arguments;
  TensorView q, k, v;
  Numbers numbers;
  bool queries_in_a_row;
  CallKey key;

  bool appends() const { return arguments.size() == kAll; }
  bool turns() const { return appends() && arguments[kRotaryCos] != nullptr; }
};

int rank_of(AnyView given) {
  const std::optional<TensorView> t = tensor_of(given);
  return t ? t->ndim() : 0;
}

// Returns whether a slot, or a page, begins a whole number of rows behind the previous one
// (`has_counted_rows` of flashsmith/ops/kv_cache.py).
bool has_counted_rows(const TensorView &t) {
  const int64_t entries = t.size(kBatch), of_entry = t.stride(kBatch), of_row = row_stride(t);
  if (of_row <= 0 || (t.size(kHead) > 1 && t.stride(kHead) <= 0)) return false;
  return entries == 1 ||
         (of_entry > 0 && of_entry % of_row == 0 && entries * (of_entry / of_row) <= kMaxRows);
}

bool is_in_boxes(const CacheCall &call) {
  const bool has_pages = call.arguments[kBlockTable] != nullptr;
  if (has_pages &&
      (call.k.size(kSequence) % kPageRowMultiple != 0 || call.arguments[kLeftpad] != nullptr)) {
    return false;
  }
  return has_counted_rows(call.k) && has_counted_rows(call.v);
}

// Sets the numbers and the positions of queries. Returns false if Python has to look at the
// arguments.
bool take_numbers(CacheCall &call) {
  const PackedArgs &given = call.arguments;
  const std::optional<bool> causal = flag_of(given[kCausal]);
  const std::optional<std::array<int64_t, 2>> window = window_of(given[kWindow]);
  const std::optional<double> softcap = softcap_of(given[kSoftcap]);
  const std::optional<double> scale = scale_of(given[kSoftmaxScale], call.q.size(kDim));
  const std::optional<int64_t> score = integer_of(given[kScore]);
  const std::optional<TensorView> table = tensor_of(given[kBlockTable]);
  if (!causal || !window || !softcap || !scale || !score) return false;
  if ((given[kBlockTable] != nullptr && !table) || (table && table->ndim() != 2)) return false;
  const int64_t rows = cache_rows(call.k, table ? &*table : nullptr);
  auto [left, right] = *window;
  call.queries_in_a_row = *causal || (0 <= left && left < rows) || (0 <= right && right < rows);
  if (*causal) right = 0;
  Numbers &numbers = call.numbers;
  numbers.softmax_scale = *scale;
  numbers.softcap = *softcap;
  numbers.score = *score;
  numbers.window_left = left >= rows - 1 ? -1 : left;
  numbers.window_right = right >= call.q.size(kSequence) - 1 ? -1 : right;
  return true;
}

CallKey key_of(const CacheCall &call, int64_t splits, int64_t n_new) {
  constexpr int kByte = 8;
  const auto &[given, q, k, v, numbers, in_a_row, unused] = call;
  const bool features[] = {numbers.window_left >= 0, numbers.window_right >= 0,
                           numbers.softcap > 0,      given[kAlibiSlopes] != nullptr,
                           given[kSinks] != nullptr, is_in_boxes(call)};
  int64_t bits = 0;
  for (const bool feature : features) bits = bits << 1 | (feature ? 1 : 0);
  CallKey key;
  key.add(given[kConfig].cast<int64_t>());
  key.add(bits, splits);
  key.add(numbers.score);
  for (const TensorView *t : {&q, &k}) key.add(t->dtype().code << kByte | t->dtype().bits);
  key.add(q.device().device_type, q.device().device_id);
  key.add(size_class(q.size(kBatch)));
  key.add(q.size(kSequence), q.size(kHead));
  key.add(q.size(kDim), v.size(kDim));
  key.add(k.size(kHead), n_new);
  key.add(rank_of(given[kKScale]), rank_of(given[kVScale]));
  return key;
}

// Returns none if Python has to look at the call.
std::optional<CacheCall> call_of(PackedArgs arguments) {
  if (arguments.size() != kKNew && arguments.size() != kAll) return std::nullopt;
  const auto q = tensor_of(arguments[kQ]);
  const auto k = tensor_of(arguments[kK]), v = tensor_of(arguments[kV]);
  for (const auto *t : {&q, &k, &v}) {
    if (!*t || (*t)->ndim() != kMaxRank || (*t)->numel() == 0) return std::nullopt;
  }
  const std::optional<int64_t> splits = integer_of(arguments[kSplits]);
  CacheCall call{arguments, *q, *k, *v, {}, false, {}};
  if (!splits || !take_numbers(call)) return std::nullopt;
  int64_t n_new = -1;
  if (call.appends()) {
    const std::optional<TensorView> k_new = tensor_of(arguments[kKNew]);
    if (!k_new || k_new->ndim() != kMaxRank || !flag_of(arguments[kInterleaved])) {
      return std::nullopt;
    }
    n_new = k_new->size(kSequence);
  }
  call.key = key_of(call, *splits, n_new);
  return call;
}

// Writes the arguments of an append (host/operations/decode.cpp) to `to`, and returns the place
// behind them.
AnyView *put_append(const CacheCall &call, AnyView *to) {
  const PackedArgs &given = call.arguments;
  *to++ = given[kInterleaved];
  *to++ = call.queries_in_a_row;
  for (const int i : {kKNew, kVNew, kK, kV}) *to++ = given[i];
  *to++ = call.turns() ? given[kQ] : AnyView();
  for (const int i :
       {kQTurned, kRotaryCos, kRotarySin, kSeqlens, kBlockTable, kBatchIdx, kKScale, kVScale}) {
    *to++ = given[i];
  }
  *to++ = AnyView();  // no workspace
  *to++ = 1.0;        // no softmax to scale
  return to;
}

// Makes the call with the function that `bind` of a decode kernel returned
// (host/operations/decode.cpp).
bool launch(const Launcher &launcher, const CacheCall &call, const Memory &memory) {
  constexpr size_t kOfAppend = 2 + kAppendOwn.size() + 2;  // two numbers precede the tensors
  constexpr size_t kOwn = kDecodeOwn.size() + 3;           // stream, workspace and scale
  std::array<AnyView, kOfAppend + kOwn + kCallArgs> told;
  const PackedArgs &given = call.arguments;
  AnyView *next = told.data();
  *next++ = memory.stream;
  if (call.appends()) next = put_append(call, next);
  *next++ = given[call.turns() ? kQTurned : kQ];
  for (const int i : {kK, kV, kO, kLse, kBlockTable, kBatchIdx, kLeftpad, kKScale, kVScale}) {
    *next++ = given[i];
  }
  *next++ = memory.counters;
  *next++ = memory.workspace;
  *next++ = call.numbers.softmax_scale;
  const AnyView none;
  for (const AnyView &tensor :
       {AnyView(given[kAlibiSlopes]), none, AnyView(given[kSinks]), none, none, none,
        AnyView(given[kSeqlens]), none, none, AnyView(given[kModTensors])}) {
    *next++ = tensor;
  }
  next = put_numbers(call.numbers, next);
  Any made;
  launcher.call.CallPacked(told.data(), static_cast<int>(next - told.data()), &made);
  return made.cast<bool>();
}

}  // namespace

int64_t decode(const KnownLaunchers &known, PackedArgs arguments) {
  const std::optional<CacheCall> call = call_of(arguments);
  if (!call) return kUnknown;
  const std::shared_ptr<Launcher> launcher = known.find(call->key);
  if (!launcher) return kUnknown;
  return launch(*launcher, *call, launcher->memory_on(call->q.device())) ? kMade : kUnknown;
}

void remember_decode(KnownLaunchers &known, PackedArgs arguments) {
  const std::optional<CacheCall> call = call_of(arguments.Slice(kOfMaking));
  if (call) known.remember(call->key, arguments);
}

}  // namespace flashsmith
