// The functions a library exports through tvm-ffi. flashsmith.runtime is their caller.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <optional>
#include <variant>

#include "host/check.h"
#include "host/launch.h"
#include "host/registry.h"

namespace flashsmith {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

using Row = Array<int64_t>;

Row fields(const FlashForwardKernelConfig &c) {
  return {static_cast<int64_t>(c.dtype),
          c.d_head,
          c.B_r,
          c.B_c,
          c.n_warps,
          c.async_copy,
          c.eager_load_blocks,
          c.swizzled,
          c.Q_mma_load_K_fragments,
          c.K_mma_load_K_fragments,
          c.V_mma_load_K_fragments,
          c.mma_double_buffer_loads,
          c.optimized_softmax};
}

Row fields(const HopperForwardKernelConfig &c) {
  return {static_cast<int64_t>(c.dtype),
          c.d_head,
          c.B_r,
          c.B_c,
          c.n_warpgroups,
          c.n_stages,
          c.Q_steps_in_registers,
          c.overlap_softmax,
          c.ping_pong,
          c.persistent,
          c.dynamic_queue,
          c.overlap_tiles,
          c.heads_per_group,
          c.cluster_size,
          c.lazy_rescale_log2,
          c.stale_maximum,
          c.fma_exponentials,
          c.tma_store};
}

// The kernels of this library, each as its family's number, its variant's `causal`, and the fields
// of its configuration. A kernel's index is the handle that forward() takes.
Array<Row> kernels() {
  Array<Row> all;
  for (const auto &[kernel, variant] : registered_kernels()) {
    Row row = {static_cast<int64_t>(kernel.index()), variant.causal};
    std::visit(
        [&](const auto &registered) {
          for (int64_t value : fields(registered.config)) row.push_back(value);
        },
        kernel);
    all.push_back(row);
  }
  return all;
}

// o = softmax(q k^T * softmax_scale) v, and lse if it is not None. Returns milliseconds if `timed`.
double forward(int64_t handle, TensorView q, TensorView k, TensorView v, TensorView o,
               Optional<TensorView> lse, Optional<TensorView> workspace, double softmax_scale,
               bool timed) {
  const auto &all = registered_kernels();
  if (handle < 0 || handle >= static_cast<int64_t>(all.size())) {
    TVM_FFI_THROW(ValueError) << "handle " << handle << " is not one of the " << all.size()
                              << " kernels of this library";
  }
  const auto given = [](const Optional<TensorView> &t) {
    return t.has_value() ? std::optional(*t) : std::nullopt;
  };
  const ForwardTensors tensors{q, k, v, o, given(lse), given(workspace)};
  check_forward(all[handle], tensors);
  if (q.numel() == 0) return 0;
  return launch_forward(all[handle], tensors, softmax_scale, timed);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernels, kernels);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, forward);

}  // namespace flashsmith
