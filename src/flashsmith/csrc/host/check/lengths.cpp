// Checks arguments that exist once for a sequence, a head or a call: lengths, offsets, slopes and
// states.
#include <tvm/ffi/error.h>

#include <cstdint>

#include "host/check/check.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr int64_t kMaxRows = int64_t{1} << 31;

// Checks that a tensor has one dimension of this size, and is contiguous.
void check_vector(const char *name, const TensorView &t, int64_t size, const char *meaning) {
  if (t.ndim() == 1 && t.size(0) == size && is_contiguous(t)) return;
  TVM_FFI_THROW(ValueError) << name << " has shape " << shape_of(t)
                            << "; it must be contiguous and of shape (" << meaning << ") = ("
                            << size << ")";
}

// Checks that sequences that are not packed have a batch entry each.
void check_batch(const char *name, const TensorView &t, const TensorView *offsets,
                 int64_t n_sequences) {
  if (offsets || t.size(kBatch) == n_sequences) return;
  TVM_FFI_THROW(ValueError) << name << " has batch size " << t.size(kBatch) << ", but there are "
                            << n_sequences << " sequences";
}

}  // namespace

void check_slopes(const ForwardTensors &tensors) {
  const TensorView *slopes = tensors.alibi_slopes();
  if (!slopes) return;
  const int64_t n_heads = tensors.q().size(kHead), batch = n_sequences(tensors);
  const bool by_head = slopes->ndim() == 1 && slopes->size(0) == n_heads;
  const bool by_batch =
      slopes->ndim() == 2 && slopes->size(0) == batch && slopes->size(1) == n_heads;
  if ((by_head || by_batch) && is_contiguous(*slopes)) return;
  TVM_FFI_THROW(ValueError) << "alibi_slopes has shape " << shape_of(*slopes)
                            << "; it must be contiguous and of shape (n_heads) = (" << n_heads
                            << ") or (batch, n_heads) = (" << batch << ", " << n_heads << ")";
}

void check_rng_state(const ForwardTensors &tensors) {
  if (const TensorView *state = tensors.rng_state()) {
    check_vector("rng_state", *state, 2, "seed and offset");
  }
}

void check_key_ranges(const ForwardTensors &tensors, const Numbers &numbers) {
  const TensorView *ranges = tensors.key_ranges();
  if (!ranges) return;
  const int64_t n_heads = tensors.q().size(kHead), batch = n_sequences(tensors);
  const int64_t rows = numbers.rows_per_range;
  const int64_t entries = rows > 0 ? (tensors.q().size(kSequence) - 1) / rows + 1 : 0;
  const auto fits = [&](int dimension, int64_t size) {
    return ranges->size(dimension) == 1 || ranges->size(dimension) == size;
  };
  if (rows > 0 && rows < kMaxRows && ranges->ndim() == 4 && fits(0, batch) && fits(1, n_heads) &&
      ranges->size(2) == entries && ranges->size(3) == 2 && is_contiguous(*ranges)) {
    return;
  }
  TVM_FFI_THROW(ValueError) << "key_ranges has shape " << shape_of(*ranges)
                            << "; it must be contiguous and of shape (batch, n_heads, blocks of "
                            << rows << " queries, 2) = (" << batch << ", " << n_heads << ", "
                            << entries << ", 2), where batch and n_heads may be 1";
}

void check_lengths(const ForwardTensors &tensors) {
  if (!tensors.is_varlen()) return;
  if (tensors.bias()) {
    TVM_FFI_THROW(ValueError) << "bias was passed with cu_seqlens or seqused; it is supported for "
                                 "sequences of equal lengths alone";
  }
  const int64_t n = n_sequences(tensors);
  const auto check = [n](const char *name, const TensorView *t, int64_t size, const char *meaning) {
    if (t) check_vector(name, *t, size, meaning);
  };
  check("cu_seqlens_q", tensors.cu_seqlens_q(), n + 1, "batch + 1");
  check("cu_seqlens_k", tensors.cu_seqlens_k(), n + 1, "batch + 1");
  check("seqused_q", tensors.seqused_q(), n, "batch");
  check("seqused_k", tensors.seqused_k(), n, "batch");
  check_batch("q", tensors.q(), tensors.cu_seqlens_q(), n);
  if (tensors.block_table()) return;  // the batch of k is pages
  check_batch("k", tensors.k(), tensors.cu_seqlens_k(), n);
}

void check_table(const ForwardTensors &tensors) {
  const TensorView *table = tensors.block_table();
  if (!table) return;
  const int64_t n = n_sequences(tensors);
  if (table->ndim() != 2 || table->size(0) != n || table->size(1) == 0 ||
      (table->size(1) > 1 && table->stride(1) != 1)) {
    TVM_FFI_THROW(ValueError) << "block_table has shape " << shape_of(*table)
                              << "; it must have contiguous rows and be of shape (batch, pages) = ("
                              << n << ", at least 1)";
  }
  if (tensors.cu_seqlens_k() || !tensors.seqused_k()) {
    TVM_FFI_THROW(ValueError) << "block_table was passed "
                              << (tensors.cu_seqlens_k() ? "with cu_seqlens_k"
                                                         : "without seqused_k")
                              << "; seqused_k says how many keys a sequence over pages has";
  }
}

}  // namespace flashsmith
