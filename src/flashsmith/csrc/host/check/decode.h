// Whether decode and append kernels take the caller's tensors.
#pragma once

#include "host/args/append.h"
#include "host/check/check.h"
#include "host/decode_kernel.h"

namespace flashsmith {

// What is asked of dtypes, shapes and devices. Returns the sizes.
ForwardProblem check_decode(const DecodeKernel &kernel, const DecodeTensors &tensors,
                            const Numbers &numbers, const DecodeNumbers &own);

// What a cache is multiplied with, if it is given.
void check_scale(const DecodeKernel &kernel, const char *name, const tvm::ffi::TensorView *t,
                 int64_t batch, const tvm::ffi::TensorView &cache);

// Which entries of the cache requests have: pages, or one each.
void check_entries(const char *name, const tvm::ffi::TensorView &k_cache,
                   const tvm::ffi::TensorView *block_table, const tvm::ffi::TensorView *batch_idx,
                   int64_t batch);

// All that is asked of an append but what changes with the addresses.
void check_append(const DecodeKernel &kernel, const AppendTensors &tensors);

// What an append writes shares no memory with what it reads. Pages of K and V may be those of one
// tensor, overlapping views of it, too: the table says which of them are written and read, and
// lists none for both.
void check_append_apart(const AppendTensors &tensors);

// Counters are there if the plan needs them.
void check_counters(const DecodeTensors &tensors, const Plan &plan);

}  // namespace flashsmith
