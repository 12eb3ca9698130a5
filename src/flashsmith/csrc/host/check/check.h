// Whether a kernel takes the caller's tensors; if not, a ValueError or TypeError names the first
// that it does not take, what came, and what is supported.
#pragma once

#include "host/forward_kernel.h"

namespace flashsmith {

// ---- of `forward`, in this order ----

// What is asked of dtypes, shapes and devices. Returns the sizes.
ForwardProblem check_problem(const ForwardKernel &kernel, const ForwardTensors &tensors);

// What is asked of a problem's memory that is not empty, but for its addresses.
void check_memory(const ForwardKernel &kernel, const ForwardTensors &tensors, const Plan &plan);

// That nothing is written where something else lies. Cheap: addresses change from call to call.
void check_apart(const Tensors &tensors);

// ---- of any operation: of what these two are made ----

// A strided argument has the configuration's dtype, which is also that of `first`.
void check_dtype(const Tensors &tensors, const Argument &argument, const tvm::ffi::TensorView &t,
                 ScalarType expected);

void check_rank(const Argument &argument, const tvm::ffi::TensorView &t);

// The device is that of the first tensor.
void check_device(const Tensors &tensors, const Argument &argument, const tvm::ffi::TensorView &t);

// A strided argument has the sizes of the arguments before it in the dimensions that they share.
void check_shape(const Tensors &tensors, size_t index);

// float32, contiguous, aligned, and of the sizes of the arguments before it.
void check_contiguous_argument(const Tensors &tensors, const Argument &argument,
                               const tvm::ffi::TensorView &t);

// 16-byte accesses reach every row: contiguous rows, aligned.
void check_rows(const Argument &argument, const tvm::ffi::TensorView &t);

// No two elements of a tensor that is written share memory.
void check_writable(const Argument &argument, const tvm::ffi::TensorView &t);

void check_workspace(const Tensors &tensors, const Plan &plan);

// ---- helpers ----

std::string shape_of(const tvm::ffi::TensorView &t);
bool is_contiguous(const tvm::ffi::TensorView &t);
bool is_aligned(const tvm::ffi::TensorView &t, size_t bytes);

}  // namespace flashsmith
