// The arguments of the operation `forward`.
#pragma once

#include <array>

#include "flashsmith/params.h"
#include "host/args/argument.h"

namespace flashsmith {

// clang-format off
inline constexpr std::array kForwardArguments = {
    Argument{.name = "q", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_head},
             .element = Element::of_config, .use = Use::read},
    Argument{.name = "k", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_head},
             .element = Element::of_config, .use = Use::read},
    Argument{.name = "v", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_head},
             .element = Element::of_config, .use = Use::read},
    Argument{.name = "o", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_head},
             .element = Element::of_config, .use = Use::written},
    Argument{.name = "lse", .dims = {Dim::batch, Dim::n_heads, Dim::seq_len_q},
             .element = Element::float32, .use = Use::written, .optional = true},
    Argument{.name = "workspace", .dims = {},
             .element = Element::any, .use = Use::scratch, .optional = true},
};
// clang-format on
static_assert(kForwardArguments.size() <= kMostTensors, "checks have room for all tensors");

// The tensors of one call, in the order of the table; null: not given.
class ForwardTensors {
  using View = tvm::ffi::TensorView;
  std::array<const View *, kForwardArguments.size()> given_;

 public:
  ForwardTensors(const View &q, const View &k, const View &v, const View &o, const View *lse,
                 const View *workspace)
      : given_{&q, &k, &v, &o, lse, workspace} {}

  const View &q() const { return *given_[0]; }
  const View &k() const { return *given_[1]; }
  const View &v() const { return *given_[2]; }
  const View &o() const { return *given_[3]; }
  const View *lse() const { return given_[4]; }
  const View *workspace() const { return given_[5]; }

  Tensors all() const { return {kForwardArguments, given_}; }
};

// What a caller gives beside the tensors.
struct ForwardNumbers {
  double softmax_scale;
};

// The sizes of one call. They fit into an int once check_problem has passed.
struct ForwardProblem {
  int batch, n_heads, n_heads_kv, seq_len_q, seq_len_k;

  bool is_empty() const { return batch == 0 || n_heads == 0 || seq_len_q == 0; }
};

ForwardProblem problem_of(const ForwardTensors &tensors);

// What kernels of every family are told alike; n_Q_blocks is the family's to set.
ProblemArgs problem_args(const ForwardTensors &tensors, const ForwardProblem &problem,
                         const ForwardNumbers &numbers);

TensorStrides strides_of(const tvm::ffi::TensorView &t);

}  // namespace flashsmith
