#include "cases.h"

int main(int argc, char **argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const struct {
    const char *name;
    std::function<void()> run;
  } all[] = {
      {"instructions", cases::instructions},
      {"faults", [&] { cases::faults(seed); }},
      {"pipeline", cases::pipeline},
      {"counts", cases::counts},
      {"counter_sums", cases::counter_sums},
      {"scheduling", cases::scheduling},
      {"many_synchronisations", cases::many_synchronisations},
      {"many_blocks", cases::many_blocks},
      {"hopper_products", cases::hopper_products},
      {"hopper_copies", cases::hopper_copies},
      {"hopper_barriers", cases::hopper_barriers},
      {"hopper_clusters", cases::hopper_clusters},
      {"hopper_warps", cases::hopper_warps},
      {"hopper_faults", [&] { cases::hopper_faults(seed); }},
      {"hopper_pipeline", cases::hopper_pipeline},
      {"hopper_far_lse", cases::hopper_far_lse},
  };
  for (const auto &test : all) {
    if (name != test.name) continue;
    test.run();
    return 0;
  }
  cases::fail("unknown case '%s'", name.c_str());
}
