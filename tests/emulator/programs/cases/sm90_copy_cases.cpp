// Rules of mbarriers and bulk copies: a small kernel for each.
#include "sm90_cases.h"

namespace cases {

using namespace sm90;

Sm90Cases copy_cases() {
  return {
      // mbarriers.
      {"barrier_not_initialised", [] { mbarrier_arrive(barrier(0)); }},
      {"barrier_init_not_ordered",
       [] {
         if (thread_index() == 0) mbarrier_init(barrier(0), 1);
         if (warp() == 1) mbarrier_wait_parity(barrier(0), 1);
       }},
      {"barrier_init_twice",
       [] {
         start(1);
         if (thread_index() == 0) mbarrier_init(barrier(0), 1);
       }},
      {"barrier_loaded",
       [] {
         start(1);
         load_shared_4(barrier(0));
       }},
      {"barrier_misaligned",
       [] {
         if (thread_index() == 0) mbarrier_init(barrier(0) + 4, 1);
       }},
      {"barrier_without_count",
       [] {
         if (thread_index() == 0) mbarrier_init(barrier(0), 0);
       }},
      {"barrier_of_too_many",
       [] {
         if (thread_index() == 0) mbarrier_init(barrier(0), 1 << 20);
       }},
      {"barrier_bytes_too_many",
       [] {
         start(1);
         if (thread_index() == 0) mbarrier_arrive_expect_tx(barrier(0), 1 << 20);
       }},
      {"barrier_bytes_negative",
       [] {
         start(1);
         if (thread_index() == 0) mbarrier_arrive_expect_tx(barrier(0), -16);
       }},
      {"barrier_bytes_too_many_together",
       [] {
         start(1, 2);
         if (thread_index() < 2) mbarrier_arrive_expect_tx(barrier(0), 1 << 19);
       }},
      {"clean_barriers_at_their_limits",
       [] {
         start(1, (1 << 20) - 1);
         if (thread_index() == 0) mbarrier_arrive_expect_tx(barrier(0), (1 << 20) - 1);
       }},
      {"barrier_arrivals",
       [] {
         start(1);
         if (warp() < 2 && lane() == 0) mbarrier_arrive_expect_tx(barrier(0), 16);
       }},
      {"barrier_deadlock",
       [] {
         start(1, 2);
         if (lane() == 0 && warp() == 1) mbarrier_arrive(barrier(0));
         mbarrier_wait_parity(barrier(0), 0);
       }},
      {"barrier_bytes_lack",
       [] {
         start(1);
         if (thread_index() == 0) {
           mbarrier_arrive_expect_tx(barrier(0), kBoxBytes + 16);
           tma_load(tile(0), input, barrier(0), 0, 0);
         }
         mbarrier_wait_parity(barrier(0), 0);
       }},
      {"barrier_bytes_unexpected",
       [] {
         start(1);
         if (thread_index() == 0) {
           tma_load(tile(0), input, barrier(0), 0, 0);
           mbarrier_arrive(barrier(0));
         }
         mbarrier_wait_parity(barrier(0), 0);
       }},
      {"barrier_parity",
       [] {
         start(1);
         mbarrier_wait_parity(barrier(0), 2);
       }},
      // Copies to shared memory.
      {"load_not_waited_for",
       [] {
         start(1);
         if (thread_index() == 0) load(0, 0);
         barrier_sync();
         read_16(slot(0));
       }},
      {"load_waited_for_by_another_warp",
       [] {
         start(1);
         if (thread_index() == 0) load(0, 0);
         if (warp() == 0) mbarrier_wait_parity(barrier(0), 0);
         if (warp() == 1) read_16(slot(0));
       }},
      {"load_waited_for_by_one_lane",
       [] {
         start(1);
         if (thread_index() == 0) load(0, 0);
         if (lane() == 0) mbarrier_wait_parity(barrier(0), 0);
         read_16(slot(0));
       }},
      {"load_of_another_barrier",
       [] {
         start(2);
         if (thread_index() == 0) load(0, 0);
         if (thread_index() == 0) load(1, 1);
         mbarrier_wait_parity(barrier(1), 0);
         read_16(slot(0));
       }},
      {"load_never_waited_for",
       [] {
         start(1);
         if (thread_index() == 0) load(0, 0);
       }},
      {"load_barrier_not_fenced",
       [] {
         if (thread_index() == 0) {
           mbarrier_init(barrier(0), 1);
           load(0, 0);
         }
       }},
      {"load_over_reads",
       [] {
         start(2);
         if (thread_index() == 0) load(0, 0);
         mbarrier_wait_parity(barrier(0), 0);
         read_16(slot(0));
         if (thread_index() == 0) load(0, 1);
       }},
      {"load_over_reads_of_a_lane_that_arrived",
       [] {
         start(3, 1);
         if (thread_index() == 0) load(0, 0);
         if (warp() == 1) {
           mbarrier_wait_parity(barrier(0), 0);
           read_16(slot(0));
           if (lane() == 0) mbarrier_arrive(barrier(2));  // lacks a warp_sync before
         }
         if (thread_index() == 0) {
           mbarrier_wait_parity(barrier(2), 0);
           load(0, 1);
           mbarrier_wait_parity(barrier(1), 0);
         }
       }},
      {"load_over_unfenced_stores",
       [] {
         start(1);
         fill();
         barrier_sync();
         if (thread_index() == 0) load(0, 0);
       }},
      {"load_twice",
       [] {
         start(2);
         if (thread_index() == 0) {
           load(0, 0);
           load(0, 1);
         }
       }},
      {"load_misaligned",
       [] {
         start(1);
         if (thread_index() == 0) tma_load(tile(0) + 64, input, barrier(0), 0, 0);
       }},
      {"load_past_end",
       [] {
         start(1);
         if (thread_index() == 0) tma_load(tile(15), input, barrier(0), 0, 0);
       }},
      {"load_half_past_end",
       [] {
         start(1);
         const shared_address end = shared_memory() + kSharedBytes;
         if (thread_index() == 0) tma_load(end - 128, input, barrier(0), 0, 0);
       }},
      {"load_of_a_row_half_outside",
       [] {
         start(1);
         TensorMap late = input;
         late.base = tensors.input + kRows * kColumns - kColumns / 2;
         if (thread_index() == 0) tma_load(tile(0), late, barrier(0), 0, 0);
       }},
      {"load_rank",
       [] {
         start(1);
         if (thread_index() == 0) tma_load(tile(0), input, barrier(0), 0, 0, 0);
       }},
      {"load_outside_tensors",
       [] {
         start(1);
         TensorMap longer = input;
         longer.sizes[1] = 1000;
         if (thread_index() == 0) tma_load(tile(0), longer, barrier(0), 0, 900);
       }},
      {"load_with_bad_map",
       [] {
         start(1);
         TensorMap narrow = input;
         narrow.box[0] = 32;
         if (thread_index() == 0) tma_load(tile(0), narrow, barrier(0), 0, 0);
       }},
      {"load_with_odd_rows",
       [] {
         start(1);
         TensorMap varlen = input;
         varlen.sizes[0] -= 4;
         if (thread_index() == 0) tma_load(tile(0), varlen, barrier(0), 0, 0);
       }},
      {"load_between_chunks",
       [] {
         start(1);
         if (thread_index() == 0) tma_load(tile(0), input, barrier(0), 1, 0);
       }},
      // Copies from shared memory.
      {"store_before_the_tensor",
       [] {
         fill_and_fence();
         if (thread_index() == 0) tma_store(output, tile(0), 0, -1);
       }},
      {"store_not_fenced",
       [] {
         fill();
         barrier_sync();
         if (thread_index() == 0) {
           store_box();
           tma_store_wait_group_read<0>();
         }
       }},
      {"store_before_barrier",
       [] {
         fill();
         fence_proxy_async();
         if (thread_index() == 0) {
           store_box();
           tma_store_wait_group_read<0>();
         }
       }},
      {"store_not_waited_for",
       [] {
         fill_and_fence();
         if (thread_index() == 0) store_box();
       }},
      {"store_not_committed",
       [] {
         fill_and_fence();
         if (thread_index() == 0) {
           tma_store(output, tile(0), 0, 0);
           tma_store_wait_group_read<0>();
         }
       }},
      {"store_overwritten",
       [] {
         fill_and_fence();
         if (thread_index() == 0) store_box();
         barrier_sync();
         fill();
         if (thread_index() == 0) tma_store_wait_group_read<0>();
       }},
      {"store_waited_for_by_another",
       [] {
         fill_and_fence();
         if (thread_index() == 0) {
           store_box();
           tma_store_wait_group_read<0>();
         }
         fill();
       }},
      {"store_to_read_only",
       [] {
         fill_and_fence();
         if (thread_index() == 0) tma_store(input, tile(0), 0, 0);
       }},
      {"thread_store_read_only",
       [] {
         if (lane() == 3) thread_store_global_4(tensors.input, 1);
       }},
      {"thread_store_past_end",
       [] {
         if (lane() == 3) thread_store_global_16(tensors.output + kRows * kColumns, {});
       }},
      {"thread_load_past_end",
       [] {
         if (lane() == 3) thread_load_global(tensors.output + kRows * kColumns);
       }},
      {"thread_load_misaligned",
       [] {
         const auto *misaligned = reinterpret_cast<const float *>(tensors.input + 1);
         if (lane() == 3) thread_load_global(misaligned);
       }},
      // Kernels that break no rule.
      {"clean_thread_loads",
       [] {
         if (lane() % 4 != 0) return;
         thread_load_global(tensors.input + kRows * kColumns - 1);
         thread_load_global(reinterpret_cast<const float *>(tensors.input) + lane());
       }},
      {"clean_thread_stores",
       [] {
         if (lane() % 4 == 0) {
           thread_store_global_4(&tensors.output[thread_index() * 8],
                                 static_cast<uint32_t>(thread_index()));
         }
         barrier_sync();
         if (tensors.output[96 * 8] != 96) fail("a store was lost");
       }},
      {"clean_lane_waits_for_its_warp",
       [] {
         start(1);
         if (thread_index() == 0) load(0, 0);
         if (lane() == 0) mbarrier_wait_parity(barrier(0), 0);
         warp_sync();
         read_16(slot(0));
       }},
      {"clean_stages",
       [] {  // the producer's lane runs apart, and one lane releases what its warp has read
         start(4);
         if (warp() == 0 && elect_one()) {
           for (int i = 0; i < 6; ++i) {
             mbarrier_wait_parity(barrier(2 + i % 2), (i / 2 & 1) ^ 1);
             load(i % 2, i % 2);
           }
         } else if (warp() == 1) {
           for (int i = 0; i < 6; ++i) {
             mbarrier_wait_parity(barrier(i % 2), i / 2 & 1);
             Chunk chunk;
             load_shared_16(chunk, tile(i % 2) + lane() * 16);
             store_shared_16(tile(2) + lane() * 16, chunk);
             warp_sync();
             if (lane() == 0) mbarrier_arrive(barrier(2 + i % 2));
           }
         }
       }},
      {"clean_every_lane_arrives",
       [] {
         if (thread_index() == 0) mbarrier_init(barrier(0), 32);
         start(0);
         fill();
         if (warp() == 0) mbarrier_arrive(barrier(0));
         if (warp() == 1) {
           mbarrier_wait_parity(barrier(0), 0);
           read_16(tile(0) + (31 - lane()) * 16);
         }
       }},
      {"clean_message",
       [] {
         start(1);
         if (thread_index() == 32) {
           thread_store_shared_4(tile(0), 17);
           mbarrier_arrive(barrier(0));
         }
         mbarrier_wait_parity(barrier(0), 0);
         if (load_shared_4(tile(0)) != 17) fail("a message was lost");
       }},
      {"clean_fence_of_the_reader",
       [] {
         fill();
         barrier_sync();
         if (thread_index() == 0) {
           fence_proxy_async();
           store_box();
           tma_store_wait_group_read<0>();
         }
       }},
      {"clean_store_and_reuse",
       [] {
         fill_and_fence();
         if (thread_index() == 64) {
           store_box();
           tma_store_wait_group_read<0>();
         }
         barrier_sync();
         fill();
       }},
  };
}

}  // namespace cases
