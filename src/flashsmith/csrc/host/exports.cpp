// The functions a library exports through tvm-ffi. flashsmith.runtime is their caller.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include "host/check.h"
#include "host/launch.h"
#include "host/registry.h"

namespace flashsmith {
namespace {

using tvm::ffi::Array;
using tvm::ffi::TensorView;

// The kernels of this library, each as the 13 fields of its configuration and its variant's
// `causal`. A kernel's index is the handle that forward() takes.
Array<Array<int64_t>> kernels() {
  Array<Array<int64_t>> all;
  for (const auto &[c, variant, kernel] : registered_kernels()) {
    all.push_back({static_cast<int64_t>(c.dtype), c.d_head, c.B_r, c.B_c, c.n_warps, c.async_copy,
                   c.eager_load_blocks, c.swizzled, c.Q_mma_load_K_fragments,
                   c.K_mma_load_K_fragments, c.V_mma_load_K_fragments, c.mma_double_buffer_loads,
                   c.optimized_softmax, variant.causal});
  }
  return all;
}

// o = softmax(q k^T * softmax_scale) v. Returns milliseconds if `timed`.
double forward(int64_t handle, TensorView q, TensorView k, TensorView v, TensorView o,
               double softmax_scale, bool timed) {
  const auto &all = registered_kernels();
  if (handle < 0 || handle >= static_cast<int64_t>(all.size())) {
    TVM_FFI_THROW(ValueError) << "handle " << handle << " is not one of the " << all.size()
                              << " kernels of this library";
  }
  const RegisteredKernel &kernel = all[handle];
  const ForwardTensors tensors{q, k, v, o};
  check_forward(kernel, tensors);
  if (q.numel() == 0) return 0;
  return launch_forward(kernel, tensors, forward_args(kernel, tensors, softmax_scale), timed);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernels, kernels);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, forward);

}  // namespace flashsmith
