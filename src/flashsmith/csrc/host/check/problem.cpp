#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "host/check/check.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

// Checks a length. Kernels count positions as int, to the end of the last block.
void check_length(const char *name, int64_t length, int block) {
  if (length > kMaxInt / block * block) {
    TVM_FFI_THROW(ValueError) << name << " has sequence length " << length
                              << "; at most 2^31 - 1 in whole blocks of " << block;
  }
}

// Checks that the tiles of the output can be counted as int.
void check_n_tiles(const ForwardTensors &tensors, const Numbers &numbers, int B_r) {
  const TensorView &q = tensors.q();
  const int64_t batch = n_sequences(tensors), n_heads = q.size(kHead);
  if (batch > kMaxInt || n_heads > kMaxInt ||
      problem_of(tensors, numbers).max_Q_blocks(B_r) > kMaxInt / std::max<int64_t>(n_heads, 1)) {
    TVM_FFI_THROW(ValueError) << "q has shape " << shape_of(q) << ", which is more than 2^31 - 1 "
                              << "blocks of " << B_r << " rows: split the call";
  }
}

void check_sizes(const TileSizes &tiles, const ForwardTensors &tensors, const Numbers &numbers) {
  const TensorView &q = tensors.q(), &k = tensors.k();
  check_heads(q, k);
  if (q.numel() > 0 && k.size(kSequence) == 0) {
    TVM_FFI_THROW(ValueError) << "k has sequence length 0; at least 1 is needed";
  }
  // The end of the keys that a block of queries sees is counted from the end of that block.
  const int block = std::max(tiles.B_r, tiles.B_c);
  check_length("q", q.size(kSequence), block);
  check_length("k", rows_of_keys(tensors), block);
  check_n_tiles(tensors, numbers, tiles.B_r);
}

// Checks that an argument is passed exactly if the kernel's variant has it.
void check_part(const Kernel &kernel, const char *name, bool wanted, bool given) {
  if (wanted == given) return;
  TVM_FFI_THROW(ValueError) << name << (given ? " was passed, but " : " is None, but ")
                            << kernel.name << (given ? " does not take it" : " needs it");
}

}  // namespace

// Checks d_head and d_v. Rows shorter than the kernel's d_head need a kernel that pads them.
void check_d_head(const Kernel &kernel, const TensorView &q, const TensorView &v) {
  const int64_t d_head = kernel.tiles.d_head, d_qk = q.size(kDim), d_v = v.size(kDim);
  const bool fits =
      kernel.variant.padded ? d_qk <= d_head && d_v <= d_head : d_qk == d_head && d_v == d_head;
  if (!fits) {
    const bool by_q = kernel.variant.padded ? d_qk > d_head : d_qk != d_head;
    TVM_FFI_THROW(ValueError) << (by_q ? "q has d_head " : "v has d_v ") << (by_q ? d_qk : d_v)
                              << ", but the configuration is for "
                              << (kernel.variant.padded ? "at most " : "") << d_head
                              << "; pass a configuration of that d_head (64, 96, 128, 192 or 256)";
  }
  for (const auto &[name, size] : {std::pair{"q has d_head ", d_qk}, {"v has d_v ", d_v}}) {
    if (size % 8 != 0 || size == 0) {
      TVM_FFI_THROW(ValueError) << name << size << "; supported are multiples of 8 up to 256";
    }
  }
}

// Checks that rows are whole chunks of 16 bytes.
void check_row_bytes(const Argument &argument, const TensorView &t) {
  constexpr int kChunkBytes = 16;
  const int multiple = kChunkBytes * 8 / t.dtype().bits;
  if (t.size(kDim) % multiple == 0) return;
  TVM_FFI_THROW(ValueError) << argument.name << " has " << name_of(argument.dims[kDim]) << " "
                            << t.size(kDim) << "; supported with float8_e4m3fn are multiples of "
                            << multiple << " up to 256";
}

void check_heads(const TensorView &q, const TensorView &k) {
  const int64_t n_heads = q.size(kHead), n_heads_kv = k.size(kHead);
  if (n_heads_kv == 0 ? n_heads != 0 : n_heads % n_heads_kv != 0) {
    TVM_FFI_THROW(ValueError) << "q has " << n_heads << " heads and k has " << n_heads_kv
                              << "; the heads of q must be a multiple of those of k";
  }
}

void check_semantics(const Kernel &kernel, const ForwardTensors &tensors) {
  const Variant &variant = kernel.variant;
  const auto check = [&](const char *name, bool wanted, bool given) {
    check_part(kernel, name, wanted, given);
  };
  check("alibi_slopes", variant.alibi, tensors.alibi_slopes() != nullptr);
  check("bias", variant.bias, tensors.bias() != nullptr);
  check("sinks", variant.sinks, tensors.sinks() != nullptr);
  check("rng_state", variant.dropout, tensors.rng_state() != nullptr);
  if (variant.score == 0) {
    check("mod_tensors", false, tensors.mod_tensor(0) != nullptr);
    check("key_ranges", false, tensors.key_ranges() != nullptr);
  }
}

ForwardProblem check_problem(const Kernel &kernel, const Tensors &tensors,
                             const ForwardTensors &forward, const Numbers &numbers) {
  tensors.for_each([&](const Argument &argument, const TensorView &t) {
    if (!has_rows(argument)) return;
    check_dtype(tensors, argument, t, kernel.type_of(argument.element));
    check_rank(argument, t);
    check_device(tensors, argument, t);
  });
  check_semantics(kernel, forward);
  check_part(kernel, "cu_seqlens or seqused", kernel.variant.varlen, forward.is_varlen());
  check_part(kernel, "block_table", kernel.variant.paged, forward.block_table() != nullptr);
  check_table(forward);
  for (size_t i = 1; i < tensors.size(); i++) {
    if (has_rows(tensors.table[i])) check_shape(tensors, i, forward.is_varlen());
  }
  check_d_head(kernel, forward.q(), forward.v());
  tensors.for_each([](const Argument &argument, const TensorView &t) {
    if (has_rows(argument)) check_row_bytes(argument, t);
  });
  check_sizes(kernel.tiles, forward, numbers);
  tensors.for_each([&](const Argument &argument, const TensorView &t) {
    if (has_rows(argument) || argument.use == Use::scratch) return;
    check_dtype(tensors, argument, t, kernel.type_of(argument.element));
    check_device(tensors, argument, t);
    if (argument.layout == Layout::broadcast) check_broadcast(tensors, argument, t);
    if (argument.rank() > 0 && argument.layout == Layout::contiguous) {
      check_contiguous_argument(tensors, argument, t);
    }
  });
  check_slopes(forward);
  check_lengths(forward);
  check_rng_state(forward);
  const ForwardProblem problem = problem_of(forward, numbers);
  const ScalarType scores = kernel.type_of(Element::of_scores);
  check_fp8_scale("q_scale", forward.q_scale(), "q", scores, problem.batch, problem.n_heads_kv);
  check_fp8_scale("k_scale", forward.k_scale(), "k", scores, problem.batch, problem.n_heads_kv);
  check_fp8_scale("v_scale", forward.v_scale(), "v", kernel.type_of(Element::of_values),
                  problem.batch, problem.n_heads_kv);
  return problem;
}

void check_numbers(const Kernel &kernel, const Numbers &numbers) {
  const Variant &variant = kernel.variant;
  const auto check = [&](const char *name, bool wanted, bool given, auto value) {
    if (wanted == given) return;
    TVM_FFI_THROW(ValueError) << name << " is " << value << ", but " << kernel.name
                              << (given ? " takes none" : " needs one");
  };
  check("window_right", variant.causal, numbers.window_right >= 0, numbers.window_right);
  check("window_left", variant.window, numbers.window_left >= 0, numbers.window_left);
  check("softcap", variant.softcap, numbers.softcap > 0, numbers.softcap);
  check("dropout_p", variant.dropout, numbers.dropout_p > 0, numbers.dropout_p);
  if (!(numbers.dropout_p >= 0 && numbers.dropout_p < 1)) {
    TVM_FFI_THROW(ValueError) << "dropout_p is " << numbers.dropout_p
                              << "; expected a number from 0 to below 1";
  }
  if (variant.score != numbers.score) {
    TVM_FFI_THROW(ValueError) << "score is " << numbers.score << ", but " << kernel.name
                              << " computes " << variant.score << " (0: none)";
  }
}

void check_memory(const Tensors &tensors) {
  tensors.for_each([&](const Argument &argument, const TensorView &t) {
    if (has_rows(argument)) check_rows(argument, t);
  });
  tensors.for_each([&](const Argument &argument, const TensorView &t) {
    if (has_rows(argument) && argument.use == Use::written) check_writable(argument, t);
  });
}

}  // namespace flashsmith
