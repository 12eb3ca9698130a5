// The declaration of an operation's tensors: one table of arguments serves the checks, the memory
// that a kernel may touch, and Python's questions.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace flashsmith {

// The sizes of a problem. `any` ends the dimensions of a tensor. A KV cache has `entries` (slots,
// or pages with a page table) of `rows`.
enum class Dim : uint8_t {
  any,
  batch,
  seq_len_q,
  seq_len_k,
  n_heads,
  n_heads_kv,
  d_head,
  d_v,
  entries,
  rows
};
inline constexpr const char *kDimNames[] = {"",        "batch",      "seq_len_q", "seq_len_k",
                                            "n_heads", "n_heads_kv", "d_head",    "d_v",
                                            "entries", "rows"};
static_assert(std::size(kDimNames) == static_cast<size_t>(Dim::rows) + 1);
constexpr const char *name_of(Dim dim) { return kDimNames[static_cast<size_t>(dim)]; }

// `of_config` is the configuration's dtype; `of_scores`, `of_values` and `of_cache` are the dtypes
// of q and k, of v, and of a cache, which may be FP8; `any`: bytes.
enum class Element : uint8_t {
  of_config,
  of_scores,
  of_values,
  of_cache,
  float32,
  int32,
  int64,
  any
};
inline constexpr const char *kElementNames[] = {"of_config", "of_scores", "of_values", "of_cache",
                                                "float32",   "int32",     "int64",     "any"};
static_assert(std::size(kElementNames) == static_cast<size_t>(Element::any) + 1);
constexpr const char *name_of(Element element) {
  return kElementNames[static_cast<size_t>(element)];
}

// The layout of a tensor in memory. `rows`: (batch, sequence, head, d_head) with strides, and
// contiguous, aligned rows; `broadcast`: with strides, and a size may be 1 instead.
enum class Layout : uint8_t { contiguous, rows, broadcast };

// `scratch` belongs to the kernel, and is passed zeroed.
enum class Use : uint8_t { read, written, scratch };
inline constexpr const char *kUseNames[] = {"read", "written", "scratch"};
static_assert(std::size(kUseNames) == static_cast<size_t>(Use::scratch) + 1);
constexpr const char *name_of(Use use) { return kUseNames[static_cast<size_t>(use)]; }

constexpr int kMaxRank = 4;
constexpr size_t kMaxTensors = 32;  // max tensors of one operation

struct Argument {
  const char *name;
  std::array<Dim, kMaxRank> dims;  // none: of any shape
  Element element;
  Layout layout = Layout::contiguous;
  Use use;
  bool optional = false;

  constexpr int rank() const {
    int rank = 0;
    while (rank < kMaxRank && dims[rank] != Dim::any) rank++;
    return rank;
  }
  constexpr bool has(Dim dim) const {
    for (Dim own : dims) {
      if (own == dim) return dim != Dim::any;
    }
    return false;
  }
};

// Returns the index of an argument in a table. It does not compile if the table has no argument of
// that name.
consteval size_t place_of(std::span<const Argument> table, std::string_view name) {
  for (size_t i = 0; i < table.size(); i++) {
    if (name == table[i].name) return i;
  }
  throw "no argument has this name";
}

constexpr bool has_rows(const Argument &argument) { return argument.layout == Layout::rows; }
constexpr int kBatch = 0, kSequence = 1, kHead = 2, kDim = 3;

// The tensors of one call, in the order of their operation's table; null: not passed.
struct Tensors {
  std::span<const Argument> table;
  std::span<const tvm::ffi::TensorView *const> given;

  size_t size() const { return table.size(); }

  // Calls do_it(argument, tensor) for the tensors that were passed.
  template <typename Do>
  void for_each(const Do &do_it) const {
    for (size_t i = 0; i < size(); i++) {
      if (given[i]) do_it(table[i], *given[i]);
    }
  }
};

}  // namespace flashsmith
