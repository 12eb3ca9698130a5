// How tensors lie in memory: what kernels can address, and what may not overlap.
#pragma once

#include <tvm/ffi/container/tensor.h>

namespace flashsmith {

constexpr int kAlignmentBytes = 16, kElementBytes = 2;
constexpr int kBatch = 0, kSequence = 1, kHead = 2, kDim = 3;
constexpr const char *kDimensions[] = {"batch", "sequence", "head"};

// Throws ValueError unless 16-byte accesses reach every row of `t`: contiguous rows, aligned.
void check_layout(const char *name, const tvm::ffi::TensorView &t);

// Throws ValueError if elements of o share memory among themselves.
void check_writable(const tvm::ffi::TensorView &o);

// Throws ValueError if `written` may share memory with `t`, which the kernel says it does not.
// `use` is what happens to `t`: "read" or "written".
void check_disjoint(const char *name, const tvm::ffi::TensorView &t, const char *use,
                    const char *written_name, const tvm::ffi::TensorView &written);

bool is_contiguous(const tvm::ffi::TensorView &t);

}  // namespace flashsmith
