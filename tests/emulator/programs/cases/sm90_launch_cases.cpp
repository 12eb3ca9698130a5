// The rules of a launch that overlaps the launch before: a small kernel for each.
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"
#include "flashsmith/ptx/global_exchange.cuh"
#include "flashsmith/ptx/global_wait.cuh"
#include "flashsmith/ptx/reduction.cuh"
#include "sm90_cases.h"

namespace cases {

using namespace sm90;

namespace {

auto *words() { return reinterpret_cast<uint32_t *>(tensors.output); }
auto *sums() { return reinterpret_cast<float *>(tensors.output); }

void run_by_one(void (*work)()) {
  if (thread_index() == 0) work();
}

}  // namespace

Sm90Cases launch_cases() {
  constexpr unsigned kThreads = 128, kCluster = 1, kBlocks = 1;
  const auto overlapping = [&](const char *name, void (*kernel)()) {
    return Sm90Case{name, kernel, kThreads, kCluster, kBlocks, true};
  };
  return {
      overlapping("word_read_before_the_wait",
                  [] { run_by_one([] { thread_load_global(tensors.input); }); }),
      overlapping("word_written_before_the_wait",
                  [] { run_by_one([] { thread_store_global_4(words(), 0); }); }),
      overlapping("counted_before_the_wait",
                  [] { run_by_one([] { thread_atomic_add(words(), 1); }); }),
      overlapping("arrived_before_the_wait",
                  [] { run_by_one([] { thread_arrive_global(words()); }); }),
      overlapping("added_to_before_the_wait",
                  [] { run_by_one([] { thread_add_global(words(), 1); }); }),
      overlapping("replaced_before_the_wait",
                  [] { run_by_one([] { thread_replace_global(words(), 0, 1); }); }),
      overlapping("polled_before_the_wait",
                  [] { run_by_one([] { thread_poll_global(words(), 0); }); }),
      overlapping("handed_on_before_the_wait",
                  [] { run_by_one([] { release_global(words(), 1); }); }),
      overlapping("looked_for_before_the_wait",
                  [] { run_by_one([] { wait_global(words(), 0); }); }),
      overlapping("row_read_before_the_wait", [] { load_global_16(tensors.input); }),
      overlapping("row_written_before_the_wait", [] { store_global_16(words(), {}); }),
      overlapping("row_copied_before_the_wait", [] { ptx::cp_async_16(slot(0), tensors.input); }),
      overlapping("added_before_the_wait", [] { add_global_4(sums(), 1.f); }),
      overlapping("box_loaded_before_the_wait",
                  [] {
                    start(1);
                    run_by_one([] { load(0, 0); });
                  }),
      overlapping("bytes_loaded_before_the_wait",
                  [] {
                    start(1);
                    run_by_one([] { bulk_load(tile(0), tensors.input, kBoxBytes, barrier(0)); });
                  }),
      overlapping("box_stored_before_the_wait",
                  [] {
                    fill_and_fence();
                    run_by_one([] { store_box(); });
                  }),
      overlapping("bytes_stored_before_the_wait",
                  [] {
                    fill_and_fence();
                    run_by_one([] { bulk_store(sums(), tile(0), kBoxBytes); });
                  }),
      overlapping("bytes_added_before_the_wait",
                  [] {
                    fill_and_fence();
                    run_by_one([] { bulk_add(sums(), tile(0), kBoxBytes); });
                  }),
      overlapping("read_where_another_thread_has_waited",
                  [] {
                    if (warp() == 0) ptx::wait_for_launch_before();
                    barrier_sync();
                    if (warp() == 1) load_global_16(tensors.input);
                  }),
      overlapping("next_launch_begins_before_the_wait", [] { ptx::let_next_launch_begin(); }),
      // Kernels that break no rule.
      overlapping("clean_wait_for_the_launch_before",
                  [] {
                    ptx::wait_for_launch_before();
                    ptx::let_next_launch_begin();
                    load_global_16(tensors.input);
                  }),
      {"clean_launch_that_does_not_overlap",
       [] {
         ptx::let_next_launch_begin();
         load_global_16(tensors.input);
       }},
  };
}

}  // namespace cases
