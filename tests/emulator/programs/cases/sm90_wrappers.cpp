// The sm_90 instructions against plain computations, with the cases of
// tests/emulator/programs/device.
#include "cases.h"
#include "device/barriers.cuh"
#include "device/bytes.cuh"
#include "device/clusters.cuh"
#include "device/copies.cuh"
#include "device/products.cuh"
#include "device/scores.cuh"
#include "device/sums.cuh"
#include "device/varlen.cuh"
#include "device/warps.cuh"

namespace cases {

namespace {

void print(void (*check)(wrappers::Results &)) {
  wrappers::Results results;
  check(results);
  results.print();
}

}  // namespace

void sm90_products() { print(wrappers::products::check<16, 64, 96, 176, 256>); }
void sm90_copies() { print(wrappers::copies::check); }
void sm90_varlen() { print(wrappers::varlen::check); }
void sm90_sums() { print(wrappers::sums::check); }
void sm90_scores() { print(wrappers::scores::check); }
void sm90_bytes() { print(wrappers::bytes::check); }
void sm90_barriers() { print(wrappers::barriers::check); }
void sm90_clusters() { print(wrappers::clusters::check); }
void sm90_warps() { print(wrappers::warps::check); }

}  // namespace cases
