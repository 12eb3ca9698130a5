// Writes the LSE of a warp's rows that lie 2^31 elements behind the first; the memory before them
// is reserved but never touched.
#include <sys/mman.h>

#include <cmath>

#include "cases.h"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/sm90/epilogue.cuh"
#include "flashsmith/sm90/traits.cuh"

namespace cases {

namespace {

using Traits = flashsmith::sm90::KernelTraits<flashsmith::Sm90ForwardKernelConfig{
    .dtype = flashsmith::ScalarType::Half,
    .d_head = 64,
    .B_r = 64,
    .B_c = 64,
    .n_warpgroups = 1,
    .n_stages = 1,
    .cluster_size = 1,
}>;

constexpr int kRows = flashsmith::sm90::kWarpRows;
constexpr size_t kBefore = size_t{1} << 31;  // rows of the sequences before

alignas(16) uint16_t O_rows[kRows * Traits::d_head];

}  // namespace

// Prints which of the rows, and of as many rows after them, were written.
void sm90_far_lse() {
  const size_t bytes = (kBefore + 2 * kRows) * sizeof(float);
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("no address space for %zu bytes", bytes);

  flashsmith::Sm90ForwardKernelArgs args{};
  args.problem.batch = 2;
  args.problem.n_heads = 1 << 15;
  args.problem.seq_len_q = 1 << 16;
  args.problem.O = O_rows;
  args.problem.O_strides = {.batch = 0, .seq = Traits::d_head, .head = 0};
  args.problem.lse = static_cast<float *>(memory);
  const auto body = [&] {  // the first rows of the second batch entry, without any key
    const flashsmith::sm90::OAccumulator<Traits> O = {};
    flashsmith::Softmax<Traits> softmax;
    softmax.start(1.f);
    flashsmith::sm90::store_tile<Traits>(args, O, softmax, {.row = 0, .head = 0, .batch = 1},
                                         flashsmith::ptx::shared_memory());
  };
  launch({.kernel = "far_lse",
          .grid = {},
          .threads = 32,
          .shared_memory_bytes = 1024,
          .memory = {{O_rows, sizeof O_rows, "O", true}, {memory, bytes, "lse", true}},
          .body = body},
         {});
  for (int i = 0; i < 2 * kRows; ++i) {
    std::printf("%s%d", i ? ", " : "[", std::isinf(args.problem.lse[kBefore + i]));
  }
  std::puts("]");
  munmap(memory, bytes);
}

}  // namespace cases
