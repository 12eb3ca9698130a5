// The arguments of the operation `forward`.
#pragma once

#include <algorithm>
#include <array>

#include "flashsmith/params.h"
#include "host/args/semantics.h"

namespace flashsmith {

// clang-format off
inline constexpr std::array kForwardOwn = {
    Argument{.name = "q", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_head},
             .element = Element::of_scores, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "k", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_head},
             .element = Element::of_scores, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "v", .dims = {Dim::batch, Dim::seq_len_k, Dim::n_heads_kv, Dim::d_v},
             .element = Element::of_values, .layout = Layout::rows, .use = Use::read},
    Argument{.name = "o", .dims = {Dim::batch, Dim::seq_len_q, Dim::n_heads, Dim::d_v},
             .element = Element::of_config, .layout = Layout::rows, .use = Use::written},
    Argument{.name = "lse", .dims = {Dim::batch, Dim::n_heads, Dim::seq_len_q},
             .element = Element::float32, .use = Use::written, .optional = true},
    Argument{.name = "q_scale", .dims = {},
             .element = Element::float32, .use = Use::read, .optional = true},
    Argument{.name = "k_scale", .dims = {},
             .element = Element::float32, .use = Use::read, .optional = true},
    Argument{.name = "v_scale", .dims = {},
             .element = Element::float32, .use = Use::read, .optional = true},
    Argument{.name = "block_table", .dims = {},
             .element = Element::int32, .use = Use::read, .optional = true},
};
// clang-format on
inline constexpr size_t kForwardShared = 5;  // the first tensors, which other operations share
inline constexpr std::array kForwardArguments = with_semantics(kForwardOwn);
// The tensors of one call, in the order of the table; null: not passed.
class ForwardTensors {
 public:
  using View = tvm::ffi::TensorView;
  using Given = std::array<const View *, kForwardArguments.size()>;

  static consteval size_t place(std::string_view name) { return place_of(kForwardArguments, name); }

  explicit ForwardTensors(const Given &given) : given_(given) {}

  const View &q() const { return *given_[place("q")]; }
  const View &k() const { return *given_[place("k")]; }
  const View &v() const { return *given_[place("v")]; }
  const View &o() const { return *given_[place("o")]; }
  const View *lse() const { return given_[place("lse")]; }
  const View *q_scale() const { return given_[place("q_scale")]; }
  const View *k_scale() const { return given_[place("k_scale")]; }
  const View *v_scale() const { return given_[place("v_scale")]; }
  const View *block_table() const { return given_[place("block_table")]; }
  const View *alibi_slopes() const { return given_[place("alibi_slopes")]; }
  const View *bias() const { return given_[place("bias")]; }
  const View *sinks() const { return given_[place("sinks")]; }
  const View *cu_seqlens_q() const { return given_[place("cu_seqlens_q")]; }
  const View *cu_seqlens_k() const { return given_[place("cu_seqlens_k")]; }
  const View *seqused_q() const { return given_[place("seqused_q")]; }
  const View *seqused_k() const { return given_[place("seqused_k")]; }
  const View *key_ranges() const { return given_[place("key_ranges")]; }
  const View *rng_state() const { return given_[place("rng_state")]; }
  // Returns a tensor that the user's functions read; the first null ends the list.
  const View *mod_tensor(int k) const {
    return given_[place("mod_tensors[0]") + static_cast<size_t>(k)];
  }
  const View *workspace() const { return given_[place("workspace")]; }

  // Returns whether the call is varlen.
  bool is_varlen() const { return cu_seqlens_q() || cu_seqlens_k() || seqused_q() || seqused_k(); }

  void set_workspace(const View *workspace) { given_[place("workspace")] = workspace; }

  Tensors all() const { return {kForwardArguments, given_}; }

 private:
  Given given_;
};

// The sizes of one call. They fit into int once check_problem has passed.
struct ForwardProblem {
  int batch;  // number of sequences
  int n_heads, n_heads_kv;
  int seq_len_q, seq_len_k;  // max lengths of a sequence
  int total_q;               // rows of all sequences if they are packed, else 0

  // Returns the max number of blocks of `rows` queries that are needed, which sequences do not
  // share.
  int64_t max_Q_blocks(int rows) const {
    const int64_t of_longest = (static_cast<int64_t>(seq_len_q) + rows - 1) / rows * batch;
    return total_q == 0 ? of_longest : std::min<int64_t>(of_longest, total_q / rows + batch);
  }
  bool is_empty() const { return batch == 0 || n_heads == 0 || seq_len_q == 0; }
};

// Returns whether sequences of a mean length are about as long as the longest one.
constexpr bool are_alike(double mean, double longest) { return mean >= 0.95 * longest; }

// Returns the rows of one batch entry of k; with a block_table, the rows of all pages in one of its
// rows.
int64_t rows_of_keys(const ForwardTensors &tensors);

// Returns the number of sequences: from cu_seqlens, else the batch size.
int64_t n_sequences(const ForwardTensors &tensors);

ForwardProblem problem_of(const ForwardTensors &tensors, const Numbers &numbers);

// Returns the arguments that the kernels of every family share; the family sets n_Q_blocks.
ProblemArgs problem_args(const Variant &variant, const ForwardTensors &tensors,
                         const ForwardProblem &problem, const Numbers &numbers);

// The workspace has the queue's next tile and the number of blocks that have found it empty; behind
// them, for varlen sequences, the tile table.
constexpr int kQueueWords = 2;
constexpr int64_t kQueueBytes = kQueueWords * sizeof(uint32_t);

// Returns the bytes of a tile table of n_entries entries.
int64_t tile_table_bytes(int64_t n_entries);

TensorStrides strides_of(const tvm::ffi::TensorView &t);

// Returns an FP8 scale; null: 1.
Fp8Scale scale_of(const tvm::ffi::TensorView *t);

}  // namespace flashsmith
