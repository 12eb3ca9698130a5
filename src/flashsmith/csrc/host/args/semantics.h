// The arguments of every operation that modify softmax(q k^T) v; and the workspace.
#pragma once

#include <algorithm>
#include <array>

#include "flashsmith/params.h"
#include "host/args/argument.h"

namespace flashsmith {

// clang-format off
inline constexpr std::array kSemanticsArguments = {
    Argument{.name = "alibi_slopes", .dims = {},
             .element = Element::float32, .use = Use::read, .optional = true},
    Argument{.name = "bias", .dims = {Dim::batch, Dim::n_heads, Dim::seq_len_q, Dim::seq_len_k},
             .element = Element::of_config, .layout = Layout::broadcast, .use = Use::read,
             .optional = true},
    Argument{.name = "sinks", .dims = {Dim::n_heads},
             .element = Element::float32, .use = Use::read, .optional = true},
    Argument{.name = "cu_seqlens_q", .dims = {},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "cu_seqlens_k", .dims = {},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "seqused_q", .dims = {},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "seqused_k", .dims = {},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "key_ranges", .dims = {},
             .element = Element::int32, .use = Use::read, .optional = true},
    Argument{.name = "rng_state", .dims = {},
             .element = Element::int64, .use = Use::read, .optional = true},
    Argument{.name = "mod_tensors[0]", .dims = {},
             .element = Element::any, .use = Use::read, .optional = true},
    Argument{.name = "mod_tensors[1]", .dims = {},
             .element = Element::any, .use = Use::read, .optional = true},
    Argument{.name = "mod_tensors[2]", .dims = {},
             .element = Element::any, .use = Use::read, .optional = true},
    Argument{.name = "mod_tensors[3]", .dims = {},
             .element = Element::any, .use = Use::read, .optional = true},
    Argument{.name = "mod_tensors[4]", .dims = {},
             .element = Element::any, .use = Use::read, .optional = true},
    Argument{.name = "mod_tensors[5]", .dims = {},
             .element = Element::any, .use = Use::read, .optional = true},
    Argument{.name = "mod_tensors[6]", .dims = {},
             .element = Element::any, .use = Use::read, .optional = true},
    Argument{.name = "mod_tensors[7]", .dims = {},
             .element = Element::any, .use = Use::read, .optional = true},
    Argument{.name = "workspace", .dims = {},
             .element = Element::any, .use = Use::scratch, .optional = true},
};
// clang-format on

constexpr size_t kModTensors = place_of(kSemanticsArguments, "mod_tensors[0]");
static_assert(kSemanticsArguments.size() == kModTensors + kMaxModBuffers + 1,
              "the workspace is the last");

// Returns the table of an operation: its own arguments, then the shared ones.
template <size_t kOwn>
constexpr auto with_semantics(const std::array<Argument, kOwn> &own) {
  std::array<Argument, kOwn + kSemanticsArguments.size()> all{};
  std::copy(own.begin(), own.end(), all.begin());
  std::copy(kSemanticsArguments.begin(), kSemanticsArguments.end(), all.begin() + kOwn);
  static_assert(all.size() <= kMaxTensors, "checks have room for all tensors");
  return all;
}

// The numbers of a call beside the tensors.
struct Numbers {
  double softmax_scale = 1;
  double softcap = 0;                            // 0: none
  int64_t window_left = -1, window_right = -1;   // keys behind and ahead of the diagonal; -1: all
  bool top_left = false;                         // the diagonal is a query's own index
  int64_t max_seqlen_q = -1, max_seqlen_k = -1;  // varlen: max lengths of a sequence; -1: not known
  int64_t score = 0;                             // hash of the user's functions; 0: none
  int64_t rows_per_range = 1;                    // queries that share an entry of key_ranges
  double dropout_p = 0;                          // share of weights that are dropped; 0: none
};
constexpr size_t kNumbers = 9;  // without the scale

// The number of `CallArgs` (flashsmith/runtime/call_args.py): its tensors, a list of the tensors
// that functions read, and its numbers.
constexpr size_t kCallArgs = kModTensors + 1 + kNumbers;

}  // namespace flashsmith
