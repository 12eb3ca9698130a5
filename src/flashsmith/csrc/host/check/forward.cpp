#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "host/check/check.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

void check_d_head(int d_head, const TensorView &q) {
  if (q.size(kDim) != d_head) {
    TVM_FFI_THROW(ValueError) << "q has d_head " << q.size(kDim)
                              << ", but the configuration is for " << d_head
                              << "; pass a configuration of that d_head (64, 96, 128, 192 or 256)";
  }
}

// Kernels count positions as int, to the end of the last block.
void check_length(const char *name, const TensorView &t, int block) {
  if (t.size(kSequence) > kMaxInt / block * block) {
    TVM_FFI_THROW(ValueError) << name << " has sequence length " << t.size(kSequence)
                              << "; at most 2^31 - 1 in whole blocks of " << block;
  }
}

void check_heads(const TensorView &q, const TensorView &k) {
  const int64_t n_heads = q.size(kHead), n_heads_kv = k.size(kHead);
  if (n_heads_kv == 0 ? n_heads != 0 : n_heads % n_heads_kv != 0) {
    TVM_FFI_THROW(ValueError) << "q has " << n_heads << " heads and k has " << n_heads_kv
                              << "; the heads of q must be a multiple of those of k";
  }
}

// Tiles of the output are counted as int.
void check_n_tiles(const TensorView &q, int B_r) {
  const int64_t batch = q.size(kBatch), n_heads = q.size(kHead);
  const int64_t n_Q_blocks = (q.size(kSequence) - 1) / B_r + 1;
  if (batch > kMaxInt || n_heads > kMaxInt || batch * n_heads > kMaxInt / n_Q_blocks) {
    TVM_FFI_THROW(ValueError) << "q has shape " << shape_of(q) << ", which is more than 2^31 - 1 "
                              << "blocks of " << B_r << " rows: split the call";
  }
}

void check_sizes(const TileSizes &tiles, const TensorView &q, const TensorView &k) {
  check_heads(q, k);
  if (q.numel() > 0 && k.size(kSequence) == 0) {
    TVM_FFI_THROW(ValueError) << "k has sequence length 0; at least 1 is needed";
  }
  // Where the keys end that a block of queries sees is counted from the end of that block.
  const int block = std::max(tiles.B_r, tiles.B_c);
  check_length("q", q, block);
  check_length("k", k, block);
  check_n_tiles(q, tiles.B_r);
}

}  // namespace

ForwardProblem check_problem(const ForwardKernel &kernel, const ForwardTensors &forward) {
  const Tensors tensors = forward.all();
  tensors.for_each([&](const Argument &argument, const TensorView &t) {
    if (!is_strided(argument)) return;
    check_dtype(tensors, argument, t, kernel.tiles.dtype);
    check_rank(argument, t);
    check_device(tensors, argument, t);
  });
  check_d_head(kernel.tiles.d_head, forward.q());
  for (size_t i = 1; i < tensors.size(); i++) {
    if (is_strided(tensors.table[i])) check_shape(tensors, i);
  }
  check_sizes(kernel.tiles, forward.q(), forward.k());
  tensors.for_each([&](const Argument &argument, const TensorView &t) {
    if (argument.element != Element::float32) return;
    check_dtype(tensors, argument, t, kernel.tiles.dtype);
    check_contiguous_argument(tensors, argument, t);
    check_device(tensors, argument, t);
  });
  return problem_of(forward);
}

void check_memory(const ForwardKernel &kernel, const ForwardTensors &forward, const Plan &plan) {
  const Tensors tensors = forward.all();
  tensors.for_each([&](const Argument &argument, const TensorView &t) {
    if (is_strided(argument)) check_rows(argument, t);
  });
  tensors.for_each([&](const Argument &argument, const TensorView &t) {
    if (is_strided(argument) && argument.use == Use::written) check_writable(argument, t);
  });
  kernel.check_layout(forward);
  check_workspace(tensors, plan);
}

}  // namespace flashsmith
