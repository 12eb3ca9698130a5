// The rules of bulk copies of consecutive bytes, and of sums in global memory: a small kernel for
// each.
#include "flashsmith/ptx/reduction.cuh"
#include "sm90_cases.h"

namespace cases {

using namespace sm90;

namespace {

const auto *kInput = tensors.input;
float *sums() { return reinterpret_cast<float *>(tensors.output); }

void load_row(int to, int over) {
  mbarrier_arrive_expect_tx(barrier(over), kBoxBytes);
  bulk_load(tile(to), kInput, kBoxBytes, barrier(over));
}
void add_row() {
  bulk_add(sums(), tile(0), kBoxBytes);
  tma_store_commit_group();
}
void by_one_thread(void (*act)()) {
  if (thread_index() == 0) act();
}
void wait_for_adds() { tma_store_wait_group_read<0>(); }

}  // namespace

Sm90Cases sum_cases() {
  return {
      {"row_not_waited_for",
       [] {
         start(1);
         by_one_thread([] { load_row(0, 0); });
         barrier_sync();
         read_16(slot(0));
       }},
      {"row_never_waited_for",
       [] {
         start(1);
         by_one_thread([] { load_row(0, 0); });
       }},
      {"row_over_reads",
       [] {
         start(2);
         by_one_thread([] { load_row(0, 0); });
         mbarrier_wait_parity(barrier(0), 0);
         read_16(slot(0));
         by_one_thread([] { load_row(0, 1); });
       }},
      {"row_over_unfenced_stores",
       [] {
         start(1);
         fill();
         barrier_sync();
         by_one_thread([] { load_row(0, 0); });
       }},
      {"row_over_a_sum_in_flight",
       [] {
         fill_and_fence();
         start(1);
         by_one_thread([] {
           add_row();
           load_row(0, 0);
           wait_for_adds();
         });
       }},
      {"row_of_part_of_a_chunk",
       [] {
         start(1);
         by_one_thread([] { bulk_load(tile(0), kInput, 24, barrier(0)); });
       }},
      {"row_of_nothing",
       [] {
         start(1);
         by_one_thread([] { bulk_load(tile(0), kInput, 0, barrier(0)); });
       }},
      {"row_misaligned",
       [] {
         start(1);
         by_one_thread([] { bulk_load(tile(0), kInput + 4, 16, barrier(0)); });
       }},
      {"row_to_misaligned",
       [] {
         start(1);
         by_one_thread([] { bulk_load(tile(0) + 8, kInput, 16, barrier(0)); });
       }},
      {"row_past_end",
       [] {
         start(1);
         by_one_thread([] { bulk_load(tile(0), kInput + kRows * kColumns - 8, 32, barrier(0)); });
       }},
      {"sum_not_fenced",
       [] {
         fill();
         barrier_sync();
         by_one_thread([] {
           add_row();
           wait_for_adds();
         });
       }},
      {"sum_before_barrier",
       [] {
         fill();
         fence_proxy_async();
         by_one_thread([] {
           add_row();
           wait_for_adds();
         });
       }},
      {"sum_not_waited_for",
       [] {
         fill_and_fence();
         by_one_thread(add_row);
       }},
      {"sum_not_committed",
       [] {
         fill_and_fence();
         by_one_thread([] {
           bulk_add(sums(), tile(0), kBoxBytes);
           wait_for_adds();
         });
       }},
      {"sum_overwritten",
       [] {
         fill_and_fence();
         by_one_thread(add_row);
         barrier_sync();
         fill();
         by_one_thread(wait_for_adds);
       }},
      {"sum_waited_for_by_another",
       [] {
         fill_and_fence();
         by_one_thread([] {
           add_row();
           wait_for_adds();
         });
         fill();
       }},
      {"sum_into_read_only",
       [] {
         fill_and_fence();
         by_one_thread([] { bulk_add(reinterpret_cast<float *>(tensors.input), tile(0), 16); });
       }},
      {"sum_past_end",
       [] {
         fill_and_fence();
         by_one_thread([] { bulk_add(sums() + kRows * kColumns / 2, tile(0), 16); });
       }},
      {"sum_of_part_of_a_chunk",
       [] {
         fill_and_fence();
         by_one_thread([] { bulk_add(sums(), tile(0), 4); });
       }},
      // Kernels that break no rule.
      {"clean_sum_and_reuse",
       [] {
         fill_and_fence();
         if (thread_index() == 64) {
           add_row();
           wait_for_adds();
         }
         barrier_sync();
         fill();
       }},
      {"clean_row_into_a_sum",
       [] {
         start(1);
         by_one_thread([] {
           load_row(0, 0);
           mbarrier_wait_parity(barrier(0), 0);
           add_row();
           wait_for_adds();
         });
       }},
  };
}

}  // namespace cases
