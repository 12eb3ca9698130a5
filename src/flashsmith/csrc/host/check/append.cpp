#include <tvm/ffi/error.h>

#include "host/check/decode.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

void check_both(const char *name, const char *other, const void *given, const void *other_given) {
  if (!given == !other_given) return;
  TVM_FFI_THROW(ValueError) << (given ? name : other) << " was passed without "
                            << (given ? other : name) << "; they go together";
}

// Checks cosines or sines: there is a row for every row that a request may have.
void check_rotary(const char *name, const TensorView &t, const AppendTensors &tensors) {
  constexpr int64_t kPairChunk = 8;  // half of rotary_dim is whole chunks
  const int64_t rows = cache_rows(tensors.k_cache(), tensors.block_table());
  const int64_t maximum = tensors.k().size(kDim) / 2;
  if (t.ndim() == 2 && is_contiguous(t) && t.size(0) >= rows && t.size(0) > 0 &&
      t.size(1) % kPairChunk == 0 && t.size(1) > 0 && t.size(1) <= maximum &&
      t.size(1) == tensors.rotary_cos()->size(1) && t.size(0) == tensors.rotary_cos()->size(0)) {
    return;
  }
  TVM_FFI_THROW(ValueError) << name << " has shape " << shape_of(t)
                            << "; it must be contiguous and of shape (rows, rotary_dim / 2), an "
                               "angle for each pair: at least "
                            << rows << " rows, and a multiple of " << kPairChunk << " up to "
                            << maximum << " columns, as many in rotary_cos as in rotary_sin";
}

}  // namespace

void check_append(const DecodeKernel &kernel, const AppendTensors &tensors) {
  const Tensors all = tensors.all();
  check_both("rotary_cos", "rotary_sin", tensors.rotary_cos(), tensors.rotary_sin());
  check_both("q", "rotary_cos", tensors.q(), tensors.rotary_cos());
  check_both("q", "q_turned", tensors.q(), tensors.q_turned());
  all.for_each([&](const Argument &argument, const TensorView &t) {
    check_dtype(all, argument, t, kernel.type_of(argument.element));
    if (has_rows(argument)) check_rank(argument, t);
    check_device(all, argument, t);
  });
  for (size_t i = 1; i < all.size(); i++) {
    if (all.given[i] && has_rows(all.table[i])) check_shape(all, i, false);
  }
  check_d_head(kernel, tensors.k(), tensors.v());
  all.for_each([&](const Argument &argument, const TensorView &t) {
    if (!has_rows(argument) && argument.rank() > 0) check_contiguous_argument(all, argument, t);
  });
  if (const TensorView *cos = tensors.rotary_cos()) {
    check_rotary("rotary_cos", *cos, tensors);
    check_rotary("rotary_sin", *tensors.rotary_sin(), tensors);
  }
  check_entries("k_cache", tensors.k_cache(), tensors.block_table(), tensors.cache_batch_idx(),
                tensors.k().size(kBatch));
  const int64_t batch = tensors.k().size(kBatch);
  check_scale(kernel, "k_scale", tensors.k_scale(), batch, tensors.k_cache());
  check_scale(kernel, "v_scale", tensors.v_scale(), batch, tensors.v_cache());
  check_memory(all);
}

void check_append_apart(const AppendTensors &tensors) {
  if (!tensors.block_table()) return check_apart(tensors.all());
  check_apart(tensors.without_k_cache().all());
  check_apart(tensors.without_v_cache().all());
}

}  // namespace flashsmith
