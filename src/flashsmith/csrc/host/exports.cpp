// The functions a library exports through tvm-ffi. flashsmith.runtime is their caller.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <optional>
#include <tuple>
#include <type_traits>

#include "host/check.h"
#include "host/launch.h"
#include "host/registry.h"

namespace flashsmith {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

using Row = Array<int64_t>;

// The fields of a configuration, in the order in which callers give their values.
constexpr auto fields_of(const FlashForwardKernelConfig *) {
  using C = FlashForwardKernelConfig;
  return std::tuple(&C::dtype, &C::d_head, &C::B_r, &C::B_c, &C::n_warps, &C::async_copy,
                    &C::eager_load_blocks, &C::swizzled, &C::Q_mma_load_K_fragments,
                    &C::K_mma_load_K_fragments, &C::V_mma_load_K_fragments,
                    &C::mma_double_buffer_loads, &C::optimized_softmax);
}

constexpr auto fields_of(const Sm90ForwardKernelConfig *) {
  using C = Sm90ForwardKernelConfig;
  return std::tuple(&C::dtype, &C::d_head, &C::B_r, &C::B_c, &C::n_warpgroups, &C::n_stages,
                    &C::Q_steps_in_registers, &C::overlap_softmax, &C::ping_pong, &C::persistent,
                    &C::dynamic_queue, &C::overlap_tiles, &C::heads_per_group, &C::cluster_size,
                    &C::lazy_rescale_log2, &C::stale_maximum, &C::fma_exponentials, &C::tma_store);
}

template <typename Config>
Config config_of(const Row &values) {
  Config config{};
  const auto set = [&](auto... field) {
    if (values.size() != sizeof...(field)) {
      TVM_FFI_THROW(ValueError) << "a configuration of " << values.size() << " values; expected "
                                << sizeof...(field);
    }
    size_t i = 0;
    ((config.*field = static_cast<std::decay_t<decltype(config.*field)>>(values[i++])), ...);
  };
  std::apply(set, fields_of(&config));
  return config;
}

// Looks a configuration up in the map of its family and variant. Returns the handle that forward()
// takes, -1 if this library has no such kernel. A family's number is its place in RegisteredKernel.
int64_t find(int64_t family, bool causal, Row values) {
  const ForwardVariant variant{.causal = causal};
  if (family == 0) {
    return find_kernel(config_of<FlashForwardKernelConfig>(values), variant).value_or(-1);
  }
  if (family == 1) {
    return find_kernel(config_of<Sm90ForwardKernelConfig>(values), variant).value_or(-1);
  }
  TVM_FFI_THROW(ValueError) << "family " << family << " is not known; supported are 0 and 1";
  return -1;
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

TVM_FFI_DLL_EXPORT_TYPED_FUNC(find, find);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(forward, forward);

}  // namespace flashsmith
