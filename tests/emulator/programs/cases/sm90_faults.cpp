// Runs the kernels that break a rule of the sm_90 instructions, and prints {name: the text of the
// fault, or "" if there was none}.
#include "sm90_cases.h"

namespace cases {

void sm90_faults(uint64_t seed) {
  using sm90::tensors;
  std::vector<Launch> launches;
  const auto add = [&](const Sm90Case &test) {
    launches.push_back({.kernel = test.name,
                        .grid = {test.blocks, 1, 1},
                        .threads = test.threads,
                        .shared_memory_bytes = sm90::kSharedBytes,
                        .memory = {{tensors.input, sizeof tensors.input, "input", false},
                                   {tensors.output, sizeof tensors.output, "output", true}},
                        .body = test.kernel,
                        .cluster = test.cluster,
                        .overlaps = test.overlaps});
  };
  for (const Sm90Case &test : copy_cases()) add(test);
  for (const Sm90Case &test : load_cases()) add(test);
  for (const Sm90Case &test : sum_cases()) add(test);
  for (const Sm90Case &test : order_cases()) add(test);
  for (const Sm90Case &test : launch_cases()) add(test);
  for (const Sm90Case &test : wgmma_cases()) add(test);
  for (const Sm90Case &test : cluster_cases()) add(test);
  print_faults(launches, seed);
}

}  // namespace cases
