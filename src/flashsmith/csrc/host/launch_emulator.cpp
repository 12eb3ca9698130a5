#ifdef FLASHSMITH_EMULATOR

#include <tvm/ffi/error.h>

#include <chrono>

#include "host/emulation.h"
#include "host/launch.h"

namespace flashsmith {
namespace {

// The bytes from a tensor's first element to its last.
emulator::MemoryRange memory_of(const char *name, const tvm::ffi::TensorView &t, bool writable) {
  const auto *first = static_cast<const char *>(t.data_ptr());
  int64_t last = 0;
  for (int i = 0; i < t.ndim(); i++) last += (t.size(i) - 1) * t.stride(i);
  return {first, static_cast<size_t>(last + 1) * sizeof(uint16_t), name, writable};
}

}  // namespace

double launch_forward(const RegisteredKernel &registered, const ForwardTensors &tensors,
                      const ForwardKernelArgs &args, bool timed) {
  const auto &[q, k, v, o] = tensors;
  if (q.device().device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "q is not in CPU memory, but the library is for the emulator";
  }
  emulator::Launch launch;
  launch.kernel = "flash_forward_kernel";
  launch.grid = {static_cast<unsigned>(args.n_Q_blocks), static_cast<unsigned>(args.n_heads),
                 static_cast<unsigned>(q.size(0))};
  launch.threads = threads_per_block(registered.config);
  launch.shared_memory_bytes = shared_memory_bytes(registered.config);
  launch.memory = {memory_of("q", q, false), memory_of("k", k, false), memory_of("v", v, false),
                   memory_of("o", o, true)};
  launch.body = [&] { registered.kernel(args); };

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
