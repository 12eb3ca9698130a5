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
      {"want_of_memory", cases::want_of_memory},
      {"sm90_products", cases::sm90_products},
      {"sm90_copies", cases::sm90_copies},
      {"sm90_varlen", cases::sm90_varlen},
      {"sm90_sums", cases::sm90_sums},
      {"sm90_scores", cases::sm90_scores},
      {"sm90_bytes", cases::sm90_bytes},
      {"sm90_barriers", cases::sm90_barriers},
      {"sm90_clusters", cases::sm90_clusters},
      {"sm90_warps", cases::sm90_warps},
      {"sm90_faults", [&] { cases::sm90_faults(seed); }},
      {"sm90_pipeline", cases::sm90_pipeline},
      {"sm90_far_lse", cases::sm90_far_lse},
      {"sm90_rough_sums", cases::sm90_rough_sums},
  };
  for (const auto &test : all) {
    if (name != test.name) continue;
    test.run();
    return 0;
  }
  cases::fail("unknown case '%s'", name.c_str());
}
