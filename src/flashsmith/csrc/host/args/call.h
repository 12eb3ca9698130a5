// The arguments of one call of an operation, as Python passes them.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <array>
#include <optional>
#include <span>

#include "host/args/semantics.h"

namespace flashsmith {

// The numbers that end flashsmith.runtime.extras, in that order.
// Throws TypeError for an argument that is none; names it.
Numbers numbers_of(tvm::ffi::PackedArgs arguments);

// The tensors that are the operation's own, in the order of its table, workspace and softmax_scale;
// behind them nothing, or all that flashsmith.runtime.extras lists, in that order.
// Rows of packed sequences come without a batch, and are one entry of a batch behind this.
class Call {
 public:
  // Throws TypeError for an argument of another type, ValueError for packed rows of another rank;
  // names it.
  Call(const char *operation, std::span<const Argument> table, tvm::ffi::PackedArgs arguments);
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;

  // By the table's order; null: not given.
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
  std::array<Sizes, kMaxTensors> batched_;  // what views of packed rows point to
  tvm::ffi::Array<tvm::ffi::Tensor> mods_;  // the views of them are of what it holds
  Numbers numbers_;
};

// All tensors of a call, for the tensors of an operation.
template <size_t kTensors>
std::array<const tvm::ffi::TensorView *, kTensors> tensors_of(const Call &call) {
  std::array<const tvm::ffi::TensorView *, kTensors> given{};
  for (size_t i = 0; i < kTensors; i++) given[i] = call.tensor(i);
  return given;
}

}  // namespace flashsmith
