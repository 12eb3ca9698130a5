#include "host/launch.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "host/launch_emulator.h"
#include "host/launch_gpu.h"

namespace flashsmith {
namespace {

bool is_gpu(DLDevice device) { return device.device_type == kDLCUDA; }

}  // namespace

int num_sms_of(Kind kind, DLDevice device) {
  if (kind == Kind::gpu) {
    if (!is_gpu(device)) {
      TVM_FFI_THROW(ValueError) << "q is not on a GPU, but the kernel was compiled for one";
    }
    return gpu::num_sms(device.device_id);
  }
  if (device.device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "q is not in CPU memory, but the kernel is for the emulator";
  }
  return emulation::num_sms();
}

Stream current_stream(DLDevice device) {
  return is_gpu(device) ? TVMFFIEnvGetStream(device.device_type, device.device_id) : nullptr;
}

bool is_capturing(DLDevice device, Stream stream) {
  return is_gpu(device) && gpu::is_capturing(device.device_id, stream);
}

void prepare(const FamilyGpus &gpus, Plan &plan, DLDevice device) {
  if (is_gpu(device)) gpu::prepare(gpus, plan, device.device_id);
}

double launch(const Plan &plan, const KernelArguments &arguments, const Tensors &tensors,
              bool timed) {
  const DLDevice device = tensors.given[0]->device();
  if (!is_gpu(device)) return emulation::launch(plan, arguments, tensors, timed);
  return gpu::launch(plan, arguments, device.device_id, current_stream(device), timed);
}

}  // namespace flashsmith
