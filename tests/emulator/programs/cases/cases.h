// Shared code of the test programs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "device/random.h"
#include "emulator/launch.h"

namespace cases {

using namespace flashsmith::emulator;

template <class... Arguments>
[[noreturn]] void fail(const char *format, Arguments... arguments) {
  std::fprintf(stderr, format, arguments...);
  std::fputc('\n', stderr);
  std::exit(1);
}

inline char *shared_bytes() { return static_cast<char *>(shared_memory()); }

// Runs each launch, and prints {its name: the text of the fault, or "" if there was none}.
inline void print_faults(const std::vector<Launch> &launches, uint64_t seed) {
  const char *separator = "{";
  for (const Launch &settings : launches) {
    std::string message;
    try {
      launch(settings, {.seed = seed});
    } catch (const Fault &fault) {
      message = fault.what();
    }
    std::printf("%s\n\"%s\": \"%s\"", separator, settings.kernel.c_str(), message.c_str());
    separator = ",";
  }
  std::puts("\n}");
}

// Each case prints one JSON object, or fails.
void instructions();
void faults(uint64_t seed);
void pipeline();
void counts();
void counter_sums();
void scheduling();
void many_synchronisations();
void many_blocks();
void want_of_memory();
void sm90_products();
void sm90_copies();
void sm90_varlen();
void sm90_sums();
void sm90_scores();
void sm90_bytes();
void sm90_barriers();
void sm90_clusters();
void sm90_warps();
void sm90_faults(uint64_t seed);
void sm90_pipeline();
void sm90_far_lse();
void sm90_rough_sums();

}  // namespace cases
