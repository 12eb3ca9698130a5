#include "cases.h"

int main(int argc, char **argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (name == "instructions") {
    cases::instructions();
  } else if (name == "faults") {
    cases::faults(seed);
  } else if (name == "pipeline") {
    cases::pipeline();
  } else if (name == "counts") {
    cases::counts();
  } else if (name == "scheduling") {
    cases::scheduling();
  } else if (name == "many_blocks") {
    cases::many_blocks();
  } else {
    cases::fail("unknown case '%s'", name.c_str());
  }
}
