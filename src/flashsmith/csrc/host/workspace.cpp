#include "host/workspace.h"

#include <tvm/ffi/extra/c_env_api.h>

#include "host/launch.h"

namespace flashsmith {

using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

int64_t current_stream_number(DLDevice device) {
  return reinterpret_cast<int64_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

bool is_current(DLDevice device, int64_t stream) {
  const Stream current = current_stream(device);
  return reinterpret_cast<int64_t>(current) == stream && !is_capturing(device, current);
}

bool has_bytes(const TensorView *memory, int64_t bytes) {
  return bytes == 0 || (memory && memory->numel() * memory->dtype().bits / 8 >= bytes);
}

bool may_have_zeros(const Plan &plan, const TensorView *workspace, DLDevice device,
                    int64_t stream) {
  if (plan.zeroed_bytes == 0 || stream == kFresh) return true;
  return workspace && is_current(device, stream);
}

OwnWorkspace::OwnWorkspace(const Plan &plan, const TensorView *given, DLDevice device) {
  if (given) {
    view_ = *given;
    return;
  }
  if (plan.workspace_bytes == 0 || plan.zeroed_bytes > 0) return;
  constexpr DLDataType kByte{.code = kDLUInt, .bits = 8, .lanes = 1};
  memory_ = Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {plan.workspace_bytes}, kByte, device);
  view_ = TensorView(*memory_);
}

}  // namespace flashsmith
