// The counters of accesses whose cost is known.
#include <array>
#include <bit>

#include "cases.h"

namespace cases {

namespace {

alignas(128) char tensor[32 * 64];
const char *separator = "{";

void print(const char *name, const Counters &c) {
  std::printf("%s\n\"%s\": {", separator, name);
  separator = ",";
  const std::pair<const char *, uint64_t> fields[] = {
      {"mma", c.mma},
      {"ldmatrix", c.ldmatrix},
      {"longest_ldmatrix_run", c.longest_ldmatrix_run},
      {"longest_mma_run", c.longest_mma_run},
      {"cp_async", c.cp_async},
      {"cp_async_in_flight_mma", c.cp_async_in_flight_mma},
      {"shuffles", c.shuffles},
      {"barriers", c.barriers},
      {"shared_wavefronts", c.shared_wavefronts},
      {"shared_wavefronts_ideal", c.shared_wavefronts_ideal},
      {"global_load_bytes", c.global_load_bytes},
      {"global_load_sectors", c.global_load_sectors},
      {"global_store_bytes", c.global_store_bytes},
      {"global_store_sectors", c.global_store_sectors}};
  const char *comma = "";
  for (const auto &[field, value] : fields) {
    std::printf("%s\"%s\": %llu", comma, field, static_cast<unsigned long long>(value));
    comma = ", ";
  }
  std::printf("}");
}

void count(const char *name, const std::function<void()> &body, unsigned threads = 32,
           bool costs = true) {
  const Launch settings{.kernel = name,
                        .grid = {},
                        .threads = threads,
                        .shared_memory_bytes = 64 << 10,
                        .memory = {{tensor, sizeof tensor, "tensor", true}},
                        .body = body};
  print(name, launch(settings, {.count = costs}).counters);
}

const uint32_t zeros[4] = {};

// Stores a tile of 64 rows of 256 bytes, with or without 16-byte chunks permuted by the row, and
// reads it by ldmatrix.
void load_fragments(bool swizzled) {
  constexpr unsigned kRows = 64, kRowChunks = 16;
  const auto chunk_of = [&](unsigned row, unsigned chunk) {
    return shared_bytes() + (row * kRowChunks + (swizzled ? chunk ^ row % 8 : chunk)) * 16;
  };
  const unsigned lane = thread_index();
  for (unsigned i = lane; i < kRows * kRowChunks; i += 32) {
    store_shared(shared_bytes() + i * 16, zeros, 16);  // adjacent: no conflicts
  }
  warp_sync(Where::current());
  uint32_t fragment[4];
  for (unsigned row = 0; row < kRows; row += 16) {
    for (unsigned chunk = 0; chunk < kRowChunks; chunk += 2) {
      ldmatrix_x4(fragment, chunk_of(row + lane % 16, chunk + lane / 16), false);
    }
  }
}

void multiply(int n) {
  float c[4] = {};
  for (int i = 0; i < n; ++i) mma_m16n8k16(c, zeros, zeros[0], zeros[1], MmaType::bf16);
}

void load_matrices(int n) {
  uint32_t fragment[4];
  for (int i = 0; i < n; ++i) ldmatrix_x4(fragment, shared_bytes(), false);
}

}  // namespace

void counts() {
  count("swizzled", [] { load_fragments(true); });
  count("unswizzled", [] { load_fragments(false); });
  count("swizzled_uncounted", [] { load_fragments(true); }, 32, false);
  const std::pair<const char *, unsigned> strides[] = {{"words_stride_1", 1},
                                                       {"words_stride_2", 2},
                                                       {"words_stride_32", 32},
                                                       {"words_stride_33", 33}};
  for (const auto &[name, stride] : strides) {
    count(name, [stride = stride] {
      store_shared(shared_bytes() + thread_index() * stride * 4, zeros, 4);
    });
  }
  count("words_broadcast", [] {
    if (thread_index() < 32) {
      uint32_t word;
      store_shared(shared_bytes() + thread_index() * 4, zeros, 4);
      warp_sync(Where::current());
      load_shared(&word, shared_bytes() + thread_index() / 8 * 4, 4);
    }
  });
  count("pairs", [] { store_shared(shared_bytes() + thread_index() * 8, zeros, 8); });
  count("matrices_stored_adjacent",
        [] { stmatrix_x4(shared_bytes() + thread_index() * 16, zeros); });
  count("matrices_stored_in_columns",
        [] { stmatrix_x4(shared_bytes() + thread_index() * 128, zeros); });
  count("global_chunks", [] { store_global(tensor + thread_index() * 16, zeros, 16); });
  count("global_words", [] {
    uint32_t word;
    load_global(&word, tensor + thread_index() * 4, 4);
  });
  count("global_scattered", [] {
    uint32_t word;
    load_global(&word, tensor + (thread_index() * 7 % 32) * 64, 4);
  });
  count("global_one_word", [] {
    uint32_t word;
    load_global(&word, tensor + 8, 4);
  });
  count(
      "runs",
      [] {
        cp_async_16(shared_bytes() + thread_index() * 16, tensor + thread_index() * 16);
        cp_async_commit_group();
        multiply(2);
        cp_async_wait_group(0, Where::current());
        multiply(1);
        barrier_sync(Where::current());
        load_matrices(5);
        multiply(2);
        load_matrices(1);
        multiply(1);
        shuffle_xor(1, 4);
        barrier_sync(Where::current());
      },
      64);
  std::puts("\n}");
}

// Prints the sums of two blocks' counters. The counters of one are 1, 2, 3 and so on, in the order
// of declaration; those of the other are 100 times as large.
void counter_sums() {
  using Values = std::array<uint64_t, sizeof(Counters) / sizeof(uint64_t)>;
  Values small, large;
  for (size_t i = 0; i < small.size(); ++i) small[i] = i + 1, large[i] = 100 * (i + 1);
  const char *separator = "[";
  for (const auto &[first, second] : {std::pair{small, large}, std::pair{large, small}}) {
    Counters counters = std::bit_cast<Counters>(first);
    counters.add(std::bit_cast<Counters>(second));
    for (uint64_t value : std::bit_cast<Values>(counters)) {
      std::printf("%s%llu", separator, static_cast<unsigned long long>(value));
      separator = ", ";
    }
  }
  std::puts("]");
}

}  // namespace cases
