#ifdef FLASHSMITH_EMULATOR

#include <tvm/ffi/error.h>

#include <chrono>
#include <variant>

#include "host/arguments.h"
#include "host/emulation.h"
#include "host/launch.h"

namespace flashsmith {
namespace {

// Persistent kernels are to find more tiles than blocks in small problems, too.
constexpr int kMultiprocessors = 4;

// The bytes from a tensor's first element to its last.
emulator::MemoryRange memory_of(const char *name, const tvm::ffi::TensorView &t, bool writable) {
  const auto *first = static_cast<const char *>(t.data_ptr());
  int64_t last = 0;
  for (int i = 0; i < t.ndim(); i++) last += (t.size(i) - 1) * t.stride(i);
  return {first, static_cast<size_t>(last + 1) * t.dtype().bits / 8, name, writable};
}

const char *kernel_name(const FlashForwardKernelConfig &) { return "flash_forward_kernel"; }
const char *kernel_name(const Sm90ForwardKernelConfig &) { return "forward_kernel"; }

unsigned cluster_size(const FlashForwardKernelConfig &) { return 1; }
unsigned cluster_size(const Sm90ForwardKernelConfig &config) {
  return static_cast<unsigned>(config.cluster_size);
}

template <typename Kernel>
emulator::Launch describe(const Kernel &registered, const ForwardTensors &tensors,
                          double softmax_scale) {
  const auto &config = registered.config;
  const Grid grid = forward_grid(config, tensors, kMultiprocessors);
  emulator::Launch launch;
  launch.kernel = kernel_name(config);
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = threads_per_block(config);
  launch.shared_memory_bytes = shared_memory_bytes(config);
  launch.cluster = cluster_size(config);
  launch.memory = {memory_of("q", tensors.q, false), memory_of("k", tensors.k, false),
                   memory_of("v", tensors.v, false), memory_of("o", tensors.o, true)};
  if (tensors.lse) launch.memory.push_back(memory_of("lse", *tensors.lse, true));
  if (tensors.workspace) launch.memory.push_back(memory_of("workspace", *tensors.workspace, true));
  launch.body = [function = registered.function,
                 args = forward_args(config, tensors, softmax_scale)] { function(args); };
  return launch;
}

}  // namespace

double launch_forward(const RegisteredKernel &registered, const ForwardTensors &tensors,
                      double softmax_scale, bool timed) {
  if (tensors.q.device().device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "q is not in CPU memory, but the library is for the emulator";
  }
  const emulator::Launch launch =
      std::visit([&](const auto &kernel) { return describe(kernel, tensors, softmax_scale); },
                 registered.kernel);
  Emulation &emulation = current_emulation();
  const auto start = std::chrono::steady_clock::now();
  try {
    emulation.report = emulator::launch(launch, emulation.options);
  } catch (const emulator::Fault &fault) {
    TVM_FFI_THROW(EmulatorFault) << fault.what();
  }
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  return timed ? elapsed.count() : 0;
}

}  // namespace flashsmith

#endif
