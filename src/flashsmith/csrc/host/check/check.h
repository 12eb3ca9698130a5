// Whether a kernel takes the caller's tensors; if not, a ValueError or TypeError names the first
// that it does not take, what came, and what is supported.
#pragma once

#include "host/args/forward.h"
#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith {

// ---- of an operation, in this order; `forward`: the tensors that its forward has ----

// What is asked of dtypes, shapes and devices. Returns the sizes.
ForwardProblem check_problem(const Kernel &kernel, const Tensors &tensors,
                             const ForwardTensors &forward, const Numbers &numbers);

// Bounds and caps, where the kernel's variant has them, and nowhere else.
void check_numbers(const Kernel &kernel, const Numbers &numbers);

// What is asked of a problem's memory that is not empty, but for its addresses.
void check_memory(const Tensors &tensors);

void check_workspace(const Tensors &tensors, const Plan &plan);

// That nothing is written where something else lies. Cheap: addresses change from call to call.
void check_apart(const Tensors &tensors);

// ---- of any operation: of what these are made ----

// An argument of rows has the dtype that the configuration says.
void check_dtype(const Tensors &tensors, const Argument &argument, const tvm::ffi::TensorView &t,
                 ScalarType expected);

void check_rank(const Argument &argument, const tvm::ffi::TensorView &t);

// The device is that of the first tensor.
void check_device(const Tensors &tensors, const Argument &argument, const tvm::ffi::TensorView &t);

// A kernel computes one variant: what is given must be what it is for; but for lengths.
void check_semantics(const Kernel &kernel, const ForwardTensors &forward);

// The kernel has room for the rows.
void check_d_head(const Kernel &kernel, const tvm::ffi::TensorView &q,
                  const tvm::ffi::TensorView &v);

// Of numbers of 8 bits: `type`, of the tensor called `of`, has them; and a shape that fits.
void check_fp8_scale(const char *name, const tvm::ffi::TensorView *t, const char *of,
                     ScalarType type, int64_t batch, int64_t heads);

void check_heads(const tvm::ffi::TensorView &q, const tvm::ffi::TensorView &k);

// An argument of rows has the sizes of those before it in the dimensions that they share; the one
// that shares most is named. `varlen`: keys may be packed where queries are not, so that their
// batch sizes say nothing of each other.
void check_shape(const Tensors &tensors, size_t index, bool varlen);

// Every size but the last is that of the arguments before it, or 1; the last is contiguous.
void check_broadcast(const Tensors &tensors, const Argument &argument,
                     const tvm::ffi::TensorView &t);

// One slope a head, or a head of each entry of the batch.
void check_slopes(const ForwardTensors &tensors);

// A seed and an offset, which lie on the device and are not looked at.
void check_rng_state(const ForwardTensors &tensors);

// Two ends for every so many queries, of each entry of the batch and head, or of all.
void check_key_ranges(const ForwardTensors &tensors, const Numbers &numbers);

// Lengths and places of sequences fit each other and the tensors. What they say is on the device
// and is not looked at.
void check_lengths(const ForwardTensors &tensors);

// It lists pages for each sequence, whose lengths seqused_k says. Which pages it lists is on the
// device and is not looked at.
void check_table(const ForwardTensors &tensors);

// float32, contiguous, aligned, and of the sizes of the arguments before it.
void check_contiguous_argument(const Tensors &tensors, const Argument &argument,
                               const tvm::ffi::TensorView &t);

// 16-byte accesses reach every row: contiguous rows, aligned.
void check_rows(const Argument &argument, const tvm::ffi::TensorView &t);

// No two elements of a tensor that is written share memory.
void check_writable(const Argument &argument, const tvm::ffi::TensorView &t);

// ---- helpers ----

std::string shape_of(const tvm::ffi::TensorView &t);
bool is_contiguous(const tvm::ffi::TensorView &t);
bool is_aligned(const tvm::ffi::TensorView &t, size_t bytes);

}  // namespace flashsmith
