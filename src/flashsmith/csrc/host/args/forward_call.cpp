#include "host/args/forward_call.h"

#include <tvm/ffi/any.h>
#include <tvm/ffi/error.h>

namespace flashsmith {
namespace {

using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::PackedArgs;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

// Where the arguments are that are no tensors of the table; those are before and between them.
enum Place { kFirstTensor = 0, kWorkspacePlace = 5, kScale, kFirstExtra, kMods = 15, kNumbers };
constexpr int kAll = kNumbers + 7;
constexpr size_t kFirstExtraTensor = 5;  // in the table: behind lse
static_assert(kFirstExtraTensor + (kMods - kFirstExtra) == kFirstModTensor);

template <typename T>
T number(const char *name, AnyView given) {
  if (auto value = given.try_cast<T>()) return *value;
  TVM_FFI_THROW(TypeError) << name << " is a " << given.GetTypeKey() << "; expected a number";
  __builtin_unreachable();
}

ForwardNumbers numbers_of(PackedArgs arguments) {
  return {.softcap = number<double>("softcap", arguments[kNumbers]),
          .window_left = number<int64_t>("window_left", arguments[kNumbers + 1]),
          .window_right = number<int64_t>("window_right", arguments[kNumbers + 2]),
          .top_left = number<bool>("top_left", arguments[kNumbers + 3]),
          .max_seqlen_q = number<int64_t>("max_seqlen_q", arguments[kNumbers + 4]),
          .score = number<int64_t>("score", arguments[kNumbers + 5]),
          .rows_per_range = number<int64_t>("rows_per_range", arguments[kNumbers + 6])};
}

}  // namespace

ForwardCall::ForwardCall(PackedArgs arguments, const ForwardNumbers &otherwise)
    : numbers_(otherwise) {
  if (arguments.size() != kFirstExtra && arguments.size() != kAll) {
    TVM_FFI_THROW(TypeError) << "forward takes " << kFirstExtra << " or " << kAll
                             << " arguments, but got " << arguments.size();
  }
  for (int i = kFirstTensor; i < kWorkspacePlace; i++) {
    take_tensor(static_cast<size_t>(i), arguments[i]);
  }
  take_tensor(kWorkspace, arguments[kWorkspacePlace]);
  if (arguments.size() == kAll) {
    for (int i = kFirstExtra; i < kMods; i++) {
      take_tensor(kFirstExtraTensor + static_cast<size_t>(i - kFirstExtra), arguments[i]);
    }
    take_mod_tensors(arguments[kMods]);
    numbers_ = numbers_of(arguments);
  }
  numbers_.softmax_scale = number<double>("softmax_scale", arguments[kScale]);
}

ForwardTensors ForwardCall::tensors() const {
  ForwardTensors::Given given{};
  for (size_t i = 0; i < kTensors; i++) given[i] = views_[i] ? &*views_[i] : nullptr;
  return ForwardTensors(given);
}

void ForwardCall::take_tensor(size_t index, AnyView given) {
  const Argument &argument = kForwardArguments[index];
  if (argument.optional && given.type_index() == tvm::ffi::TypeIndex::kTVMFFINone) return;
  if (auto view = given.try_cast<TensorView>()) {
    views_[index] = *view;
    return;
  }
  TVM_FFI_THROW(TypeError) << argument.name << " is a " << given.GetTypeKey()
                           << "; expected a tensor";
}

void ForwardCall::take_mod_tensors(AnyView given) {
  if (given.type_index() == tvm::ffi::TypeIndex::kTVMFFINone) return;
  mods_ = given.cast<Array<Tensor>>();
  if (mods_.size() > kMostModBuffers) {
    TVM_FFI_THROW(ValueError) << "mod_tensors has " << mods_.size() << " tensors; at most "
                              << kMostModBuffers << " can be read";
  }
  size_t index = kFirstModTensor;
  for (const Tensor &t : mods_) views_[index++] = TensorView(t);
}

}  // namespace flashsmith
