#include <tvm/ffi/error.h>

#include <cstdint>

#include "host/check/check.h"

namespace flashsmith {

using tvm::ffi::TensorView;

namespace {

constexpr int kAlignmentBytes = 16;
constexpr const char *kDimensions[] = {"batch", "sequence", "head"};

}  // namespace

bool is_contiguous(const TensorView &t) {
  if (t.numel() == 0) return true;
  int64_t stride = 1;
  for (int i = t.ndim() - 1; i >= 0; i--) {
    if (t.size(i) > 1 && t.stride(i) != stride) return false;
    stride *= t.size(i);
  }
  return true;
}

bool is_aligned(const TensorView &t, size_t bytes) {
  return reinterpret_cast<uintptr_t>(t.data_ptr()) % bytes == 0;
}

void check_rows(const Argument &argument, const TensorView &t) {
  if (t.size(kDim) > 1 && t.stride(kDim) != 1) {
    TVM_FFI_THROW(ValueError) << argument.name << " has stride " << t.stride(kDim)
                              << " in its last dimension; it must be contiguous there (stride 1): "
                                 "call .contiguous()";
  }
  if (!is_aligned(t, kAlignmentBytes)) {
    TVM_FFI_THROW(ValueError) << argument.name << " starts at an address that is not a multiple of "
                              << kAlignmentBytes << " bytes (remainder "
                              << reinterpret_cast<uintptr_t>(t.data_ptr()) % kAlignmentBytes
                              << "); call .clone()";
  }
  for (int i = kBatch; i <= kHead; i++) {
    const int element_bytes = t.dtype().bits / 8;
    if (t.size(i) > 1 && t.stride(i) * element_bytes % kAlignmentBytes != 0) {
      TVM_FFI_THROW(ValueError) << argument.name << " has " << kDimensions[i] << " stride "
                                << t.stride(i)
                                << " elements; strides of batch, sequence and head must be "
                                   "multiples of "
                                << kAlignmentBytes / element_bytes
                                << " elements (16 bytes): call .contiguous()";
    }
  }
}

void check_workspace(const Tensors &tensors, const Plan &plan) {
  const size_t last = tensors.size() - 1;
  const Argument &argument = tensors.table[last];
  const TensorView *t = tensors.given[last];
  const int64_t needed = plan.workspace_bytes;
  if (needed == 0) {
    if (!t) return;
    TVM_FFI_THROW(ValueError) << argument.name
                              << " was passed, but this kernel needs none; pass None";
  }
  if (!t) {
    TVM_FFI_THROW(ValueError) << argument.name << " is None; this kernel needs " << needed
                              << " bytes of zeroed memory on q's device";
  }
  const int64_t bytes = t->numel() * t->dtype().bits / 8;
  if (bytes < needed || !is_contiguous(*t) || !is_aligned(*t, sizeof(uint32_t))) {
    TVM_FFI_THROW(ValueError) << argument.name << " has " << bytes << " bytes; it must be at least "
                              << needed << ", contiguous and 4-byte aligned";
  }
  check_device(tensors, argument, *t);
}

}  // namespace flashsmith
