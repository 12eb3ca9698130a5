// The tensors of one forward call.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <optional>

namespace flashsmith {

struct ForwardTensors {
  tvm::ffi::TensorView q;                         // (batch, seq_len_q, n_heads, d_head)
  tvm::ffi::TensorView k, v;                      // (batch, seq_len_k, n_heads_kv, d_head)
  tvm::ffi::TensorView o;                         // as q
  std::optional<tvm::ffi::TensorView> lse;        // (batch, n_heads, seq_len_q), float32
  std::optional<tvm::ffi::TensorView> workspace;  // workspace_bytes(config) zeros, left so
};

}  // namespace flashsmith
