// The arguments of one call of `forward`, as Python passes them.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <array>
#include <optional>

#include "host/args/forward.h"

namespace flashsmith {

// q, k, v, o, lse, workspace and softmax_scale; behind them nothing, or all that
// flashsmith.runtime.extras lists, in that order.
class ForwardCall {
 public:
  // `otherwise`: the numbers of a call that passes no more than softmax_scale.
  // Throws TypeError for an argument of another type; names it.
  explicit ForwardCall(tvm::ffi::PackedArgs arguments, const ForwardNumbers &otherwise = {});

  ForwardTensors tensors() const;
  const ForwardNumbers &numbers() const { return numbers_; }

 private:
  static constexpr size_t kTensors = kForwardArguments.size();

  void take_tensor(size_t index, tvm::ffi::AnyView given);
  void take_mod_tensors(tvm::ffi::AnyView given);

  std::array<std::optional<tvm::ffi::TensorView>, kTensors> views_;
  tvm::ffi::Array<tvm::ffi::Tensor> mods_;  // the views of them are of what it holds
  ForwardNumbers numbers_;
};

}  // namespace flashsmith
