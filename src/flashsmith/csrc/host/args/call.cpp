#include "host/args/call.h"

#include <tvm/ffi/any.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <string>

#include "host/check/check.h"

namespace flashsmith {
namespace {

using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::PackedArgs;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

// The number of arguments between the tensors of an operation and its extras: workspace and scale.
constexpr size_t kBetween = 2;

template <typename T>
T number(const char *name, AnyView given) {
  if (auto value = given.try_cast<T>()) return *value;
  TVM_FFI_THROW(TypeError) << name << " is a " << given.GetTypeKey() << "; expected a number";
  __builtin_unreachable();
}

// Returns whether the rows of a tensor are those of one side, queries or keys.
bool has_rows_of(const Argument &argument, Dim side) {
  const Dim other = side == Dim::seq_len_q ? Dim::seq_len_k : Dim::seq_len_q;
  return argument.has(Dim::batch) && argument.has(side) && !argument.has(other);
}

// Returns a shape like "(total, n_heads, d_head)".
std::string packed_names(const Argument &argument) {
  std::string names;
  for (int d = 1; d < argument.rank(); d++) {
    const bool is_rows = argument.dims[d] == Dim::seq_len_q || argument.dims[d] == Dim::seq_len_k;
    names += std::string(d > 1 ? ", " : "(") + (is_rows ? "total" : name_of(argument.dims[d]));
  }
  return names + ")";
}

}  // namespace

Numbers numbers_of(PackedArgs arguments) {
  return {.softcap = number<double>("softcap", arguments[0]),
          .window_left = number<int64_t>("window_left", arguments[1]),
          .window_right = number<int64_t>("window_right", arguments[2]),
          .top_left = number<bool>("top_left", arguments[3]),
          .max_seqlen_q = number<int64_t>("max_seqlen_q", arguments[4]),
          .max_seqlen_k = number<int64_t>("max_seqlen_k", arguments[5]),
          .score = number<int64_t>("score", arguments[6]),
          .rows_per_range = number<int64_t>("rows_per_range", arguments[7]),
          .dropout_p = number<double>("dropout_p", arguments[8])};
}

Call::Call(const char *operation, std::span<const Argument> table, PackedArgs arguments)
    : table_(table) {
  const size_t n_own = table.size() - kSemanticsArguments.size(), n_few = n_own + kBetween;
  const auto n_given = static_cast<size_t>(arguments.size());
  if (n_given != n_few && n_given != n_few + kCallArgs) {
    TVM_FFI_THROW(TypeError) << operation << " takes " << n_few << " or " << n_few + kCallArgs
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
  take_packed(place_of(kSemanticsArguments, "cu_seqlens_q"), Dim::seq_len_q);
  take_packed(place_of(kSemanticsArguments, "cu_seqlens_k"), Dim::seq_len_k);
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

void Call::take_packed(size_t offsets, Dim side) {
  const size_t n_own = table_.size() - kSemanticsArguments.size();
  if (!views_[n_own + offsets]) return;
  for (size_t i = 0; i < n_own; i++) {
    if (views_[i] && has_rows_of(table_[i], side)) {
      add_batch(i, kSemanticsArguments[offsets].name);
    }
  }
}

void Call::add_batch(size_t index, const char *offsets) {
  const Argument &argument = table_[index];
  const TensorView &given = *views_[index];
  const int rank = argument.rank() - 1;
  if (given.ndim() != rank) {
    TVM_FFI_THROW(ValueError) << argument.name << " has " << given.ndim() << " dimensions, shape "
                              << shape_of(given) << "; expected " << rank << " with " << offsets
                              << ": " << packed_names(argument);
  }
  auto &[sizes, strides] = batched_[index];
  std::ranges::copy_n(given.shape().data(), rank, sizes.begin() + 1);
  std::ranges::copy_n(given.strides().data(), rank, strides.begin() + 1);
  sizes[0] = 1;
  strides[0] = sizes[1] * strides[1];
  const DLTensor batched = {.data = given.data_ptr(),
                            .device = given.device(),
                            .ndim = argument.rank(),
                            .dtype = given.dtype(),
                            .shape = sizes.data(),
                            .strides = strides.data(),
                            .byte_offset = given.byte_offset()};
  views_[index] = TensorView(&batched);
}

void Call::take_mod_tensors(size_t first, AnyView given) {
  if (given.type_index() == tvm::ffi::TypeIndex::kTVMFFINone) return;
  mods_ = given.cast<Array<Tensor>>();
  if (mods_.size() > kMaxModBuffers) {
    TVM_FFI_THROW(ValueError) << "mod_tensors has " << mods_.size() << " tensors; at most "
                              << kMaxModBuffers << " can be read";
  }
  for (const Tensor &t : mods_) views_[first++] = TensorView(t);
}

}  // namespace flashsmith
