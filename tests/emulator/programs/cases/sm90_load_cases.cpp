// Late loads from shared memory: a small kernel for each way to know that they have read. Warp 1
// loads the tile of a bulk copy and releases it; a thread of warp 0 then overwrites it.
#include "flashsmith/ptx/mma.cuh"
#include "sm90_cases.h"

namespace cases {

using namespace sm90;

namespace {

constexpr int kReader = 1;

void use(const uint32_t (&fragment)[4]) {
  float sums[4] = {};
  mma_m16n8k16<half_t>(sums, fragment, fragment[0], fragment[1]);
}

// Returns the lane's address for ldmatrix: a row of 16 bytes in the tile.
shared_address row() { return tile(0) + lane() * 16; }

template <class Read, class Overwrite>
void reader_and_writer(Read read, Overwrite overwrite) {
  start(3);
  if (thread_index() == 0) load(0, 0);
  if (warp() == kReader) {
    mbarrier_wait_parity(barrier(0), 0);
    read();
    if (lane() == 0) mbarrier_arrive(barrier(2));
  }
  if (thread_index() == 0) {
    mbarrier_wait_parity(barrier(2), 0);
    overwrite();
  }
}

void copy_again() {
  load(0, 1);
  mbarrier_wait_parity(barrier(1), 0);
}

template <class Read>
void reader_and_copy(Read read) {
  reader_and_writer(read, copy_again);
}

}  // namespace

Sm90Cases load_cases() {
  return {
      {"read_in_flight_at_the_arrival",
       [] {
         uint32_t fragment[4];
         reader_and_copy([&] { ldmatrix_x4<false>(fragment, row()); });
       }},
      {"read_in_flight_after_a_warp_sync",
       [] {
         uint32_t fragment[4];
         reader_and_copy([&] {
           ldmatrix_x4<false>(fragment, row());
           warp_sync();
         });
       }},
      {"read_in_flight_after_a_barrier",
       [] {
         uint32_t fragment[4];
         start(2);
         if (thread_index() == 0) load(0, 0);
         mbarrier_wait_parity(barrier(0), 0);
         ldmatrix_x4<false>(fragment, row());
         barrier_sync();
         if (thread_index() == 0) copy_again();
       }},
      {"read_used_after_the_arrival",
       [] {
         uint32_t fragment[4];
         reader_and_copy([&] { ldmatrix_x4<false>(fragment, row()); });
         if (warp() == kReader) use(fragment);
       }},
      {"read_of_which_one_of_two_is_used",
       [] {
         uint32_t used[4], other[4];
         reader_and_copy([&] {
           ldmatrix_x4<false>(other, row());
           ldmatrix_x4<false>(used, row());
           use(used);
         });
       }},
      {"read_into_registers_that_a_later_one_takes",
       [] {
         uint32_t fragment[4];
         reader_and_copy([&] {
           ldmatrix_x4<false>(fragment, row());
           ldmatrix_x4<false>(fragment, tile(0) + (31 - lane()) * 16);
         });
       }},
      {"read_fenced_by_one_lane",
       [] {
         uint32_t fragment[4];
         reader_and_copy([&] {
           ldmatrix_x4<false>(fragment, row());
           if (lane() == 0) fence_proxy_async();
         });
       }},
      {"read_by_plain_loads_in_flight",
       [] {
         reader_and_copy([] {
           read_16(row());
           warp_sync();
         });
       }},
      {"read_in_flight_in_another_block",
       [] {
         uint32_t fragment[4];
         if (thread_index() == 0) {
           mbarrier_init(barrier(0), 1);
           mbarrier_init(barrier(1), 2);
           fence_mbarrier_init();
         }
         cluster_sync();
         const auto share = [] {
           if (thread_index() != 0) return;
           mbarrier_arrive_expect_tx(barrier(0), kBoxBytes);
           if (cluster_rank() == 0) tma_load_multicast(tile(0), input, barrier(0), 0b11, 0, 0);
         };
         share();
         mbarrier_wait_parity(barrier(0), 0);
         if (warp() == 0) {
           ldmatrix_x4<false>(fragment, row());
           warp_sync();
           if (lane() < 2) mbarrier_arrive_remote(barrier(1), lane());
         }
         mbarrier_wait_parity(barrier(1), 0);
         share();
         mbarrier_wait_parity(barrier(0), 1);
         cluster_sync();
       },
       32, 2},
      // A word that both a lane and a warp as a whole have read must be released by both.
      {"read_in_two_ways",
       [] {
         uint32_t fragment[4];
         reader_and_writer(
             [&] {
               read_16(row());
               ldmatrix_x4<false>(fragment, row());
               use(fragment);
             },
             [] { thread_store_shared_4(tile(0) + 31 * 16, 1); });
       }},
      // A lane's arrival does not order the reads of the other lanes of its warp.
      {"read_as_a_whole_and_stored_by_a_lane",
       [] {
         uint32_t fragment[4];
         start(2);
         if (thread_index() == 0) load(0, 0);
         if (warp() != 0) return;
         mbarrier_wait_parity(barrier(0), 0);
         ldmatrix_x4<false>(fragment, row());
         use(fragment);
         if (lane() != 0) return;
         mbarrier_arrive(barrier(1));
         mbarrier_wait_parity(barrier(1), 0);
         thread_store_shared_4(tile(0) + 31 * 16, 1);
       },
       32},
      // Kernels that break no rule.
      {"clean_read_used_before_the_arrival",
       [] {
         uint32_t fragment[4];
         reader_and_copy([&] {
           ldmatrix_x4<false>(fragment, row());
           use(fragment);
         });
       }},
      {"clean_plain_read_used_before_the_arrival",
       [] {
         reader_and_copy([] {
           Chunk chunk;
           load_shared_16(chunk, row());
           store_shared_16(tile(1) + lane() * 16, chunk);
           warp_sync();
         });
       }},
      {"clean_read_fenced_by_all_lanes",
       [] {
         uint32_t fragment[4];
         reader_and_copy([&] {
           ldmatrix_x4<false>(fragment, row());
           fence_proxy_async();
           warp_sync();
         });
       }},
      {"clean_read_in_flight_before_a_plain_store",
       [] {
         uint32_t fragment[4];
         reader_and_writer([&] { ldmatrix_x4<false>(fragment, row()); },
                           [] { thread_store_shared_4(tile(0), 1); });
       }},
  };
}

}  // namespace cases
