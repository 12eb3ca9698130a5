// One small kernel for each rule. Prints {name: the text of the fault, or "" if there was none}.
#include "cases.h"

namespace cases {

namespace {

constexpr unsigned kThreads = 64, kLanes = 32;
constexpr size_t kBytes = 4096;
#define HERE Where::current()

struct Tensors {
  alignas(16) char input[kBytes] = {};
  char gap[64] = {};
  alignas(16) char output[kBytes] = {};
  alignas(16) char chunk[16] = {};
} tensors;

unsigned warp() { return thread_index() / kLanes; }
unsigned lane() { return thread_index() % kLanes; }
char *slot(unsigned index) { return shared_bytes() + index * 16; }
const uint32_t zeros[4] = {};
const float nothing[4] = {};

void store(unsigned index) { store_shared(slot(index), zeros, 16); }
void load(unsigned index) {
  uint32_t ignored[4];
  load_shared(ignored, slot(index), 16);
}
void load_matrix(unsigned index) {
  uint32_t ignored[4];
  ldmatrix_x4(ignored, slot(index), false);
}
void store_matrix(unsigned index) { stmatrix_x4(slot(index), zeros); }
void copy(unsigned index) { cp_async_16(slot(index), tensors.input + lane() * 16); }
void commit_and_wait() {
  cp_async_commit_group();
  cp_async_wait_group(0, HERE);
}

[[gnu::noinline]] int recurse(int depth) {
  volatile char frame[512];
  frame[0] = static_cast<char>(depth);
  warp_sync(HERE);
  return depth == 0 ? 0 : recurse(depth - 1) + frame[0];
}

struct Case {
  const char *name;
  void (*kernel)();
};

const Case kFaults[] = {
    // Addresses.
    {"shared_past_end", [] { store(kBytes / 16 - 3 + lane()); }},
    {"shared_before_start", [] { store_shared(shared_bytes() - 16, zeros, 16); }},
    {"shared_misaligned", [] { store_shared(slot(lane()) + 8, zeros, 16); }},
    {"shared_far_away", [] { store_shared(tensors.output, zeros, 16); }},
    {"global_past_end",
     [] {
       uint32_t word;
       load_global(&word, tensors.input + kBytes - 60 + 4 * lane(), 4);
     }},
    {"global_misaligned",
     [] {
       uint32_t words[4];
       load_global(words, tensors.input + 4 + 16 * lane(), 16);
     }},
    {"global_read_only", [] { store_global(tensors.input + 16 * lane(), zeros, 16); }},
    {"sum_read_only",
     [] { add_global(reinterpret_cast<float *>(tensors.input) + lane(), nothing, 1); }},
    {"sum_misaligned",
     [] { add_global(reinterpret_cast<float *>(tensors.output) + 1 + 4 * lane(), nothing, 4); }},
    {"numbers_of_a_sum", [] { add_global(reinterpret_cast<float *>(tensors.output), nothing, 2); }},
    {"global_null",
     [] {
       uint32_t word;
       load_global(&word, nullptr, 4);
     }},
    {"copy_from_past_end", [] { cp_async_16(slot(thread_index()), tensors.input + kBytes); }},
    {"size_of_access", [] { store_shared(slot(lane()), zeros, 2); }},
    // Contents.
    {"uninitialised_load", [] { load(thread_index()); }},
    {"uninitialised_matrix",
     [] {
       if (warp() == 0) store(lane());
       barrier_sync(HERE);
       load_matrix(lane() + 1);
     }},
    {"in_flight_load",
     [] {
       copy(thread_index());
       cp_async_commit_group();
       load(thread_index());
     }},
    {"in_flight_uncommitted",
     [] {
       copy(thread_index());
       cp_async_wait_group(0, HERE);
       load(thread_index());
     }},
    {"in_flight_newer_group",
     [] {
       copy(thread_index());
       cp_async_commit_group();
       cp_async_wait_group(1, HERE);
       load(thread_index());
     }},
    {"in_flight_store",
     [] {
       copy(thread_index());
       store(thread_index());
     }},
    {"in_flight_twice",
     [] {
       copy(thread_index());
       copy(thread_index());
     }},
    // Races between warps.
    {"read_after_write",
     [] {
       if (warp() == 0) store(lane());
       if (warp() == 1) load(lane());
     }},
    {"write_after_read",
     [] {
       store(thread_index());
       barrier_sync(HERE);
       load(thread_index());
       store(kThreads - 1 - thread_index());
     }},
    {"write_after_write", [] { store(lane()); }},
    {"copy_over_read",
     [] {
       store(thread_index());
       barrier_sync(HERE);
       if (warp() == 0) load_matrix(lane());
       if (warp() == 1) copy(lane());
     }},
    {"copy_without_barrier",
     [] {
       if (warp() == 0) copy(lane());
       commit_and_wait();
       if (warp() == 1) load(lane());
     }},
    {"barrier_before_wait",
     [] {
       copy(thread_index());
       cp_async_commit_group();
       barrier_sync(HERE);
       cp_async_wait_group(0, HERE);
       load(kThreads - 1 - thread_index());
     }},
    {"warp_sync_is_not_a_barrier",
     [] {
       store(thread_index());
       warp_sync(HERE);
       load(kThreads - 1 - thread_index());
     }},
    // Races inside a warp.
    {"lanes_read_after_write",
     [] {
       store(thread_index());
       load(thread_index() ^ 1);
     }},
    {"lanes_write_after_read",
     [] {
       store(thread_index());
       warp_sync(HERE);
       load(thread_index() ^ 1);
       store(thread_index());
     }},
    {"lanes_write_after_write",
     [] {
       store(thread_index());
       store(thread_index() ^ 1);
     }},
    {"lanes_write_one_word", [] { store(warp()); }},
    {"matrix_after_write",
     [] {
       store(thread_index());
       load_matrix(thread_index());
     }},
    {"write_after_matrix",
     [] {
       store(thread_index());
       warp_sync(HERE);
       load_matrix(thread_index());
       store(thread_index());
     }},
    {"load_after_matrix_store",
     [] {
       store_matrix(thread_index());
       load(thread_index());
     }},
    {"matrix_after_matrix_store",
     [] {
       store_matrix(thread_index());
       load_matrix(thread_index());
     }},
    {"matrix_store_after_matrix",
     [] {
       store(thread_index());
       warp_sync(HERE);
       load_matrix(thread_index());
       store_matrix(thread_index());
     }},
    {"matrix_store_after_loads",
     [] {
       store(thread_index());
       warp_sync(HERE);
       load(thread_index());
       load(thread_index() ^ 1);
       store_matrix(thread_index());
     }},
    {"matrix_store_after_load",
     [] {
       store(thread_index());
       warp_sync(HERE);
       load(thread_index());
       store_matrix(thread_index());
     }},
    {"matrix_store_twice",
     [] {
       store_matrix(thread_index());
       store_matrix(thread_index());
     }},
    {"matrix_store_one_row", [] { store_matrix(warp() * kLanes); }},
    {"matrix_store_misaligned", [] { stmatrix_x4(slot(thread_index()) + 8, zeros); }},
    {"matrix_after_copy",
     [] {
       copy(thread_index());
       commit_and_wait();
       load_matrix(thread_index());
     }},
    {"mma_and_shuffle_order_nothing",
     [] {
       float c[4] = {};
       const uint32_t b[2] = {};
       store(thread_index());
       mma_m16n8k16(c, zeros, b[0], b[1], MmaType::f16);
       shuffle_xor(c[0], 1);
       load(thread_index() ^ 1);
     }},
    // Control flow.
    {"divergence",
     [] {
       if (lane() < 16) store(thread_index());
       shuffle_xor(1, 1);
     }},
    {"divergence_of_sites",
     [] {
       if (lane() < 16) {
         warp_sync(HERE);
       } else {
         warp_sync(HERE);
       }
     }},
    {"divergence_of_modifiers", [] { shuffle_xor(1, lane() < 16 ? 1 : 2); }},
    {"deadlock",
     [] {
       if (warp() == 0) barrier_sync(HERE);
     }},
    {"return_while_others_wait",
     [] {
       if (lane() != 31) warp_sync(HERE);
     }},
    {"arrival_after_return",
     [] {
       if (lane() != 0) warp_sync(HERE);
     }},
    {"stack_overflow", [] { recurse(1000); }},
    {"shuffle_mask", [] { shuffle_xor(1, 32); }},
    {"shuffle_lane", [] { shuffle_from(1, 32); }},
    {"wait_negative", [] { cp_async_wait_group(-1, HERE); }},
};

const Case kClean[] = {
    {"clean_lane_reads_its_own",
     [] {
       store(thread_index());
       load(thread_index());
       store(thread_index());
       copy(thread_index());
       commit_and_wait();
       load(thread_index());
     }},
    {"clean_warp_sync",
     [] {
       copy(thread_index());
       commit_and_wait();
       warp_sync(HERE);
       load_matrix(thread_index());
       load(thread_index() ^ 1);
       warp_sync(HERE);
       store(thread_index() ^ 2);
     }},
    {"clean_all_warps_read",
     [] {
       store(thread_index());
       barrier_sync(HERE);
       for (unsigned i = 0; i < 2; ++i) load_matrix(i * kLanes + lane());
       for (unsigned i = 0; i < kThreads; ++i) load(i);
       barrier_sync(HERE);
       store(kThreads - 1 - thread_index());
     }},
    {"clean_barriers_at_two_sites",
     [] {
       store(thread_index());
       if (warp() == 0) {
         barrier_sync(HERE);
       } else {
         barrier_sync(HERE);
       }
       load(kThreads - 1 - thread_index());
     }},
    {"clean_oldest_group_first",
     [] {
       copy(thread_index());
       cp_async_commit_group();
       copy(kThreads + thread_index());
       cp_async_commit_group();
       cp_async_wait_group(1, HERE);
       load(thread_index());
     }},
    {"clean_whole_tensor_at_once",
     [] {
       uint32_t words[4];
       load_global(words, tensors.chunk, sizeof words);
     }},
    {"clean_never_waited_for", [] { copy(thread_index()); }},
    {"clean_whole_warps_return",
     [] {
       if (warp() == 1) return;
       store(thread_index());
       warp_sync(HERE);
       load(thread_index() ^ 1);
     }},
};

}  // namespace

void faults(uint64_t seed) {
  std::vector<Launch> launches;
  const auto add = [&](const Case &test) {
    launches.push_back({.kernel = test.name,
                        .grid = {},
                        .threads = kThreads,
                        .shared_memory_bytes = kBytes,
                        .memory = {{tensors.input, kBytes, "input", false},
                                   {tensors.output, kBytes, "output", true},
                                   {tensors.chunk, sizeof tensors.chunk, "chunk", false}},
                        .body = test.kernel});
  };
  for (const Case &test : kFaults) add(test);
  for (const Case &test : kClean) add(test);
  print_faults(launches, seed);
}

}  // namespace cases
