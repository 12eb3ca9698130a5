// Runs the kernels that break a rule of the sm_90 instructions. Prints {name: what the fault said,
// or "" if there was none}.
#include "hopper_cases.h"

namespace cases {

namespace {

std::string message_of(const HopperCase &test, uint64_t seed) {
  const Launch settings{
      .kernel = test.name,
      .grid = {},
      .threads = test.threads,
      .shared_memory_bytes = hopper::kSharedBytes,
      .memory = {{hopper::tensors.input, sizeof hopper::tensors.input, "input", false},
                 {hopper::tensors.output, sizeof hopper::tensors.output, "output", true}},
      .body = test.kernel};
  try {
    launch(settings, {.seed = seed});
  } catch (const Fault &fault) {
    return fault.what();
  }
  return "";
}

}  // namespace

void hopper_faults(uint64_t seed) {
  const char *separator = "{";
  const auto print = [&](const HopperCase &test) {
    std::printf("%s\n\"%s\": \"%s\"", separator, test.name, message_of(test, seed).c_str());
    separator = ",";
  };
  for (const HopperCase &test : copy_cases()) print(test);
  for (const HopperCase &test : wgmma_cases()) print(test);
  std::puts("\n}");
}

}  // namespace cases
