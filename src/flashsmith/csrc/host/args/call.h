// The arguments of one call of an operation, as Python passes them.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <array>
#include <optional>
#include <span>

#include "host/args/semantics.h"

namespace flashsmith {

// Converts the numbers that end flashsmith.runtime.extras, in that order. Throws a TypeError that
// names an argument that is no number.
Numbers numbers_of(tvm::ffi::PackedArgs arguments);

// The arguments are the operation's own tensors, in the order of its table, workspace and
// softmax_scale; then nothing, or everything that flashsmith.runtime.extras lists, in that order.
// Rows of packed sequences are passed without a batch dimension, and become one batch entry here.
class Call {
 public:
  // Throws a TypeError for an argument of another type, or a ValueError for packed rows of another
  // rank, which names the argument.
  Call(const char *operation, std::span<const Argument> table, tvm::ffi::PackedArgs arguments);
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;

  // Returns a tensor by its index in the table; null: not passed.
  const tvm::ffi::TensorView *tensor(size_t index) const {
    return views_[index] ? &*views_[index] : nullptr;
  }
  const Numbers &numbers() const { return numbers_; }

 private:
  void take_tensor(size_t index, tvm::ffi::AnyView given);
  void take_mod_tensors(size_t first, tvm::ffi::AnyView given);
  void take_packed(size_t offsets, Dim side);
  void add_batch(size_t index, const char *offsets);

  std::span<const Argument> table_;
  std::array<std::optional<tvm::ffi::TensorView>, kMaxTensors> views_;
  struct Sizes {
    std::array<int64_t, kMaxRank> sizes, strides;
  };
  std::array<Sizes, kMaxTensors> batched_;  // the views of packed rows point to these
  tvm::ffi::Array<tvm::ffi::Tensor> mods_;  // owns the tensors of the views
  Numbers numbers_;
};

// Returns all tensors of a call, for the tensors of an operation.
template <size_t kTensors>
std::array<const tvm::ffi::TensorView *, kTensors> tensors_of(const Call &call) {
  std::array<const tvm::ffi::TensorView *, kTensors> given{};
  for (size_t i = 0; i < kTensors; i++) given[i] = call.tensor(i);
  return given;
}

}  // namespace flashsmith
