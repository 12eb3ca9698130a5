// The following functions check whether decode and append kernels take the caller's tensors.
#pragma once

#include "host/args/append.h"
#include "host/check/check.h"
#include "host/decode_kernel.h"

namespace flashsmith {

// Checks dtypes, shapes and devices. Returns the sizes.
ForwardProblem check_decode(const DecodeKernel &kernel, const DecodeTensors &tensors,
                            const Numbers &numbers, const DecodeNumbers &own);

// Checks the scale of a cache, if it was passed.
void check_scale(const DecodeKernel &kernel, const char *name, const tvm::ffi::TensorView *t,
                 int64_t batch, const tvm::ffi::TensorView &cache);

// Checks the slots or pages of the cache that requests use.
void check_entries(const char *name, const tvm::ffi::TensorView &k_cache,
                   const tvm::ffi::TensorView *block_table, const tvm::ffi::TensorView *batch_idx,
                   int64_t batch);

// Checks an append, except what changes with the addresses.
void check_append(const DecodeKernel &kernel, const AppendTensors &tensors);

// Checks that an append writes no memory that it reads. Pages of K and V may belong to one tensor,
// even to overlapping views: the page table says which pages are written and read, and lists none
// for both.
void check_append_apart(const AppendTensors &tensors);

// Checks that there are counters if the plan needs them.
void check_counters(const DecodeTensors &tensors, const Plan &plan);

}  // namespace flashsmith
