// The wrappers of sm_90 on a GPU against plain computations, which tests/emulator uses for the
// emulator as well. Takes the name of a case; prints the number of comparisons and the failures as
// JSON.
#include "device/barriers.cuh"
#include "device/bytes.cuh"
#include "device/clusters.cuh"
#include "device/copies.cuh"
#include "device/pipeline.cuh"
#include "device/products.cuh"
#include "device/scores.cuh"
#include "device/sums.cuh"
#include "device/varlen.cuh"
#include "device/warps.cuh"

int main(int argc, char **argv) {
  using namespace wrappers;
  const struct {
    const char *name;
    void (*check)(Results &);
  } all[] = {
      {"products",
       products::check<16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256>},
      {"copies", copies::check},
      {"varlen", varlen::check},
      {"sums", sums::check},
      {"scores", scores::check},
      {"bytes", bytes::check},
      {"barriers", barriers::check},
      {"clusters", clusters::check},
      {"warps", warps::check},
      {"pipeline", pipeline::check},
  };
  for (const auto &test : all) {
    if (argc != 2 || std::strcmp(argv[1], test.name) != 0) continue;
    Results results;
    test.check(results);
    results.print();
    return 0;
  }
  std::fprintf(stderr,
               "usage: %s products|copies|varlen|sums|scores|bytes|barriers|clusters|warps|"
               "pipeline\n",
               argv[0]);
  return 2;
}
