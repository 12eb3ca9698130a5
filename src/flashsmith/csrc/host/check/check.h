// The following functions check whether a kernel takes the caller's tensors. If not, a ValueError
// or TypeError names the first tensor that it does not take, what was passed, and what is
// supported.
#pragma once

#include "host/args/forward.h"
#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith {

// ---- checks of an operation, in this order; `forward` has the tensors of its forward ----

// Checks dtypes, shapes and devices. Returns the sizes.
ForwardProblem check_problem(const Kernel &kernel, const Tensors &tensors,
                             const ForwardTensors &forward, const Numbers &numbers);

// Checks that bounds and caps were passed if the kernel's variant has them, and only then.
void check_numbers(const Kernel &kernel, const Numbers &numbers);

// Checks the memory of a problem that is not empty, except the addresses.
void check_memory(const Tensors &tensors);

void check_workspace(const Tensors &tensors, const Plan &plan);

// Checks that no written tensor shares memory with another one. This is cheap, because addresses
// change from call to call.
void check_apart(const Tensors &tensors);

// ---- the parts of these checks, for any operation ----

// Checks that an argument of rows has the dtype of the configuration.
void check_dtype(const Tensors &tensors, const Argument &argument, const tvm::ffi::TensorView &t,
                 ScalarType expected);

void check_rank(const Argument &argument, const tvm::ffi::TensorView &t);

// Checks that the device is that of the first tensor.
void check_device(const Tensors &tensors, const Argument &argument, const tvm::ffi::TensorView &t);

// Checks that the arguments, except lengths, are those of the kernel's variant: a kernel computes
// one variant.
void check_semantics(const Kernel &kernel, const ForwardTensors &forward);

// Checks that the kernel has room for the rows.
void check_d_head(const Kernel &kernel, const tvm::ffi::TensorView &q,
                  const tvm::ffi::TensorView &v);

// Checks an FP8 scale: `type`, the dtype of the tensor called `of`, is FP8, and the shape fits.
void check_fp8_scale(const char *name, const tvm::ffi::TensorView *t, const char *of,
                     ScalarType type, int64_t batch, int64_t heads);

void check_heads(const tvm::ffi::TensorView &q, const tvm::ffi::TensorView &k);

// Checks that an argument of rows has the sizes of the arguments before it in the dimensions that
// they share; a message names the one that shares the most. `varlen`: keys may be packed where
// queries are not, so that their batch sizes may differ.
void check_shape(const Tensors &tensors, size_t index, bool varlen);

// Checks that every size but the last is that of the arguments before it, or 1, and that the last
// dimension has that size and is contiguous.
void check_broadcast(const Tensors &tensors, const Argument &argument,
                     const tvm::ffi::TensorView &t);

// Checks that there is one slope for each head, or for each head and batch entry.
void check_slopes(const ForwardTensors &tensors);

// Checks the shape of a seed and an offset. They are on the device and are not read.
void check_rng_state(const ForwardTensors &tensors);

// Checks that there are two ends for every rows_per_range queries of each batch entry and head, or
// of all.
void check_key_ranges(const ForwardTensors &tensors, const Numbers &numbers);

// Checks that lengths and offsets of sequences fit each other and the tensors. Their values are on
// the device and are not read.
void check_lengths(const ForwardTensors &tensors);

// Checks that the page table has pages for each sequence, whose lengths are seqused_k. Its pages
// are on the device and are not read.
void check_table(const ForwardTensors &tensors);

// Checks that an argument is contiguous, aligned, and has the sizes of the arguments before it.
void check_contiguous_argument(const Tensors &tensors, const Argument &argument,
                               const tvm::ffi::TensorView &t);

// Checks that 16-byte accesses reach every row: rows are contiguous and aligned.
void check_rows(const Argument &argument, const tvm::ffi::TensorView &t);

// Checks that no two elements of a written tensor share memory.
void check_writable(const Argument &argument, const tvm::ffi::TensorView &t);

// ---- helpers ----

std::string shape_of(const tvm::ffi::TensorView &t);
bool is_contiguous(const tvm::ffi::TensorView &t);
bool is_aligned(const tvm::ffi::TensorView &t, size_t bytes);

}  // namespace flashsmith
