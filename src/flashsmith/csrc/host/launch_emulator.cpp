#include "host/launch_emulator.h"

#include <tvm/ffi/error.h>

#include <chrono>
#include <span>
#include <vector>

#include "host/emulation.h"

namespace flashsmith {
namespace {

// Returns the bytes from a tensor's first element to its last.
emulator::MemoryRange memory_of(const Argument &argument, const tvm::ffi::TensorView &t) {
  const auto *first = static_cast<const char *>(t.data_ptr());
  int64_t last = 0;
  for (int i = 0; i < t.ndim(); i++) last += (t.size(i) - 1) * t.stride(i);
  return {first, static_cast<size_t>(last + 1) * t.dtype().bits / 8, argument.name,
          argument.use != Use::read};
}

emulator::Launch describe(const Launch &launch, const KernelArguments &arguments,
                          const Tensors &tensors) {
  emulator::Launch described;
  described.kernel = launch.function.name;
  described.grid = {launch.grid.x, launch.grid.y, launch.grid.z};
  described.threads = launch.threads;
  described.shared_memory_bytes = static_cast<size_t>(launch.shared_memory_bytes);
  described.cluster = launch.cluster;
  described.overlaps = launch.overlaps;
  tensors.for_each([&](const Argument &argument, const tvm::ffi::TensorView &t) {
    described.memory.push_back(memory_of(argument, t));
  });
  described.body = [&launch, &arguments] { launch.call(launch.function.handle, arguments); };
  return described;
}

void emulate(std::span<const emulator::Launch> launches, Emulation &emulation) {
  try {
    emulation.report = emulator::launch(launches, emulation.options);
  } catch (const emulator::Fault &fault) {
    TVM_FFI_THROW(EmulatorFault) << fault.what();
  }
}

}  // namespace

namespace emulation {

int num_sms() { return current_emulation().num_sms; }

double launch(const Plan &plan, const KernelArguments &arguments, const Tensors &tensors,
              bool timed) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<emulator::Launch> launches;
  for (const Launch &each : plan.launches) launches.push_back(describe(each, arguments, tensors));
  emulate(launches, current_emulation());
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  return timed ? elapsed.count() : 0;
}

}  // namespace emulation
}  // namespace flashsmith
