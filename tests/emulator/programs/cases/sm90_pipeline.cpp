// The pipeline of tests/emulator/programs/device under fault injection: dropping any site must be
// noticed, and the result may depend only on the input.
#include "cases.h"
#include "device/pipeline.cuh"

namespace cases {

namespace {

namespace pipeline = wrappers::pipeline;

struct Outcome {
  std::string fault;
  std::vector<uint16_t> c;
  int wrong;
  Report report;
};

Outcome run(const Options &options) {
  pipeline::Matrices m;
  const pipeline::Kernel kernel = pipeline::kernel_of(m);
  const Launch settings{.kernel = "sm90_pipeline",
                        .grid = {pipeline::kBlocks, 1, 1},
                        .threads = pipeline::Kernel::kThreads,
                        .shared_memory_bytes = sizeof(pipeline::Smem),
                        .memory = {{m.a.data(), m.a.size() * 2, "a", false},
                                   {m.b.data(), m.b.size() * 2, "b", false},
                                   {m.c.data(), m.c.size() * 2, "c", true},
                                   {m.counter.data(), 16, "counter", true}},
                        .body = [&] { kernel(); }};
  Outcome outcome;
  try {
    outcome.report = launch(settings, options);
    outcome.c = m.c;
    outcome.wrong = pipeline::count_wrong(m);
  } catch (const Fault &fault) {
    outcome.fault = fault.what();
  }
  return outcome;
}

void print_noticed(const Outcome &clean) {
  std::printf("\"sites\": {");
  const char *separator = "";
  for (const Site &site : clean.report.sites) {
    std::printf("%s\n\"%s:%u\": [", separator, site.kind.c_str(), site.line);
    separator = ",";
    for (uint64_t seed = 0; seed < 10; ++seed) {
      // One block computes all tiles, so that each site is needed.
      const Outcome dropped = run({.seed = seed, .dropped = site, .count = false, .workers = 1});
      const bool differs = dropped.c != clean.c;
      std::printf(
          "%s\"%s\"", seed ? ", " : "",
          dropped.fault.empty() ? (differs ? "result differs" : "") : dropped.fault.c_str());
    }
    std::printf("]");
  }
  std::printf("\n}");
}

}  // namespace

void sm90_pipeline() {
  const Outcome clean = run({.workers = 1});
  if (!clean.fault.empty()) fail("%s", clean.fault.c_str());
  if (clean.wrong) fail("%d elements of the product are wrong", clean.wrong);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Outcome other = run({.seed = seed, .workers = seed % 2 ? 2 : 1});
    if (!other.fault.empty()) fail("seed %llu: %s", (unsigned long long)seed, other.fault.c_str());
    if (other.c != clean.c) fail("seed %llu: the result differs", (unsigned long long)seed);
  }
  const Counters &c = clean.report.counters;
  const std::pair<const char *, uint64_t> counts[] = {{"wgmma", c.wgmma},
                                                      {"wgmma_flops", c.wgmma_flops},
                                                      {"wgmma_shared_bytes", c.wgmma_shared_bytes},
                                                      {"tma_loads", c.tma_loads},
                                                      {"tma_load_bytes", c.tma_load_bytes},
                                                      {"tma_stores", c.tma_stores},
                                                      {"tma_store_bytes", c.tma_store_bytes},
                                                      {"mbarrier_waits", c.mbarrier_waits},
                                                      {"mbarrier_arrivals", c.mbarrier_arrivals},
                                                      {"named_barriers", c.named_barriers}};
  std::printf("{");
  for (const auto &[name, count] : counts) {
    std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(count));
  }
  print_noticed(clean);
  std::puts("}");
}

}  // namespace cases
