#include "host/args/call.h"

#include <tvm/ffi/any.h>
#include <tvm/ffi/error.h>

namespace flashsmith {
namespace {

using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::PackedArgs;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

// Numbers of arguments: workspace and scale; the tensors that extras begin with, the list of
// those that functions read, and numbers.
constexpr size_t kBetween = 2, kNumbers = 8, kExtras = kModTensors + 1 + kNumbers;

template <typename T>
T number(const char *name, AnyView given) {
  if (auto value = given.try_cast<T>()) return *value;
  TVM_FFI_THROW(TypeError) << name << " is a " << given.GetTypeKey() << "; expected a number";
  __builtin_unreachable();
}

}  // namespace

Numbers numbers_of(PackedArgs arguments) {
  return {.softcap = number<double>("softcap", arguments[0]),
          .window_left = number<int64_t>("window_left", arguments[1]),
          .window_right = number<int64_t>("window_right", arguments[2]),
          .top_left = number<bool>("top_left", arguments[3]),
          .max_seqlen_q = number<int64_t>("max_seqlen_q", arguments[4]),
          .score = number<int64_t>("score", arguments[5]),
          .rows_per_range = number<int64_t>("rows_per_range", arguments[6]),
          .dropout_p = number<double>("dropout_p", arguments[7])};
}

Call::Call(const char *operation, std::span<const Argument> table, PackedArgs arguments,
           const Numbers &otherwise)
    : table_(table), numbers_(otherwise) {
  const size_t n_own = table.size() - kSemanticsArguments.size(), n_few = n_own + kBetween;
  const auto n_given = static_cast<size_t>(arguments.size());
  if (n_given != n_few && n_given != n_few + kExtras) {
    TVM_FFI_THROW(TypeError) << operation << " takes " << n_few << " or " << n_few + kExtras
                             << " arguments, but got " << n_given;
  }
  const auto at = [&](size_t place) { return arguments[static_cast<int>(place)]; };
  for (size_t i = 0; i < n_own; i++) take_tensor(i, at(i));
  take_tensor(table.size() - 1, at(n_own));
  if (n_given > n_few) {
    for (size_t i = 0; i < kModTensors; i++) take_tensor(n_own + i, at(n_few + i));
    take_mod_tensors(n_own + kModTensors, at(n_few + kModTensors));
    numbers_ = numbers_of(arguments.Slice(static_cast<int>(n_few + kModTensors + 1)));
  }
  numbers_.softmax_scale = number<double>("softmax_scale", at(n_own + 1));
}

void Call::take_tensor(size_t index, AnyView given) {
  const Argument &argument = table_[index];
  if (argument.optional && given.type_index() == tvm::ffi::TypeIndex::kTVMFFINone) return;
  if (auto view = given.try_cast<TensorView>()) {
    views_[index] = *view;
    return;
  }
  TVM_FFI_THROW(TypeError) << argument.name << " is a " << given.GetTypeKey()
                           << "; expected a tensor";
}

void Call::take_mod_tensors(size_t first, AnyView given) {
  if (given.type_index() == tvm::ffi::TypeIndex::kTVMFFINone) return;
  mods_ = given.cast<Array<Tensor>>();
  if (mods_.size() > kMostModBuffers) {
    TVM_FFI_THROW(ValueError) << "mod_tensors has " << mods_.size() << " tensors; at most "
                              << kMostModBuffers << " can be read";
  }
  for (const Tensor &t : mods_) views_[first++] = TensorView(t);
}

}  // namespace flashsmith
