// Runs the kernels that break a rule of the sm_90 instructions. Prints {name: what the fault said,
// or "" if there was none}.
#include "hopper_cases.h"

namespace cases {

void hopper_faults(uint64_t seed) {
  using hopper::tensors;
  std::vector<Launch> launches;
  const auto add = [&](const HopperCase &test) {
    launches.push_back({.kernel = test.name,
                        .grid = {test.cluster, 1, 1},
                        .threads = test.threads,
                        .shared_memory_bytes = hopper::kSharedBytes,
                        .memory = {{tensors.input, sizeof tensors.input, "input", false},
                                   {tensors.output, sizeof tensors.output, "output", true}},
                        .body = test.kernel,
                        .cluster = test.cluster});
  };
  for (const HopperCase &test : copy_cases()) add(test);
  for (const HopperCase &test : load_cases()) add(test);
  for (const HopperCase &test : wgmma_cases()) add(test);
  for (const HopperCase &test : cluster_cases()) add(test);
  print_faults(launches, seed);
}

}  // namespace cases
