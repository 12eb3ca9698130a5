// The arguments of the operation `backward`: the gradients of `forward`.
#pragma once

#include "flashsmith/backward_params.h"
#include "host/args/forward.h"

namespace flashsmith {

// clang-format off
inline constexpr std::array kBackwardOwn = {
    Argument{.name = "q", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_head},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "k", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_head},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "v", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_v},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "o", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_v},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "lse", .dims = {Dim::batch, Dim::n_heads, Dim::seq_len_q},
             .element = Element::float32, .use = Use::read},
    Argument{.name = "do", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_v},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "dq", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_head},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::written},
    Argument{.name = "dk", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_head},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::written},
    Argument{.name = "dv", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_v},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::written},
    Argument{.name = "dlse", .dims = {Dim::batch, Dim::n_heads, Dim::seq_len_q},
             .element = Element::float32, .use = Use::read, .optional = true},
    Argument{.name = "dsinks", .dims = {Dim::n_heads},
             .element = Element::float32, .use = Use::written, .optional = true},
    Argument{.name = "dbias", .dims = {Dim::batch, Dim::n_heads, Dim::seq_len_q, Dim::seq_len_k},
             .element = Element::float32, .use = Use::written, .optional = true},
};
// clang-format on
inline constexpr std::array kBackwardArguments = with_semantics(kBackwardOwn);

// The tensors of one call, in the order of the table; null: not passed.
class BackwardTensors {
 public:
  using View = tvm::ffi::TensorView;
  using Given = std::array<const View *, kBackwardArguments.size()>;

  static consteval size_t place(std::string_view name) {
    return place_of(kBackwardArguments, name);
  }

  explicit BackwardTensors(const Given &given) : given_(given) {}

  const View &dO() const { return *given_[place("do")]; }
  const View &dq() const { return *given_[place("dq")]; }
  const View &dk() const { return *given_[place("dk")]; }
  const View &dv() const { return *given_[place("dv")]; }
  const View *dlse() const { return given_[place("dlse")]; }
  const View *dsinks() const { return given_[place("dsinks")]; }
  const View *dbias() const { return given_[place("dbias")]; }
  const View *workspace() const { return given_[place("workspace")]; }

  // Returns the tensors of the forward, whose o and lse are read here.
  ForwardTensors forward() const {
    ForwardTensors::Given forward{};
    std::copy_n(given_.begin(), kForwardShared, forward.begin());
    std::copy(given_.begin() + kBackwardOwn.size(), given_.end(),
              forward.begin() + kForwardOwn.size());
    return ForwardTensors(forward);
  }

  void set_workspace(const View *workspace) { given_[place("workspace")] = workspace; }

  // Returns whether dq, dk and dv are new, so that elements that nothing else writes have to be
  // zero.
  bool are_new() const { return are_new_; }
  void set_new(bool are_new) { are_new_ = are_new; }

  Tensors all() const { return {kBackwardArguments, given_}; }

 private:
  Given given_;
  bool are_new_ = false;
};

// The following functions return the blocks of kStatisticsRows rows of q: in one batch entry of the
// tensors; and in all entries, with one more for each sequence if sequences are packed.
int n_statistics_blocks(const ForwardTensors &tensors);
int64_t all_statistics_blocks(const ForwardTensors &tensors);

// Returns the bytes of the workspace: statistics and, behind them, the FP32 sums of dQ, in rows of
// d_sums elements; 0: no sums.
int64_t gradient_workspace_bytes(const ForwardTensors &tensors, int d_sums);

// Returns the arguments that the kernels of every family share.
GradientArgs gradient_args(const BackwardTensors &tensors, const Numbers &numbers, int d_sums);

}  // namespace flashsmith
