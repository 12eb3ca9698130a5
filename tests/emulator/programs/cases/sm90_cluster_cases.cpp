// The rules of clusters: a small kernel for each, in a cluster of two thread blocks.
#include "sm90_cases.h"

namespace cases {

using namespace sm90;

namespace {

constexpr uint16_t kBoth = 0b11;

// Initialises the barriers of both blocks; the second barrier counts one arrival of each block.
void start_cluster() {
  if (thread_index() == 0) {
    mbarrier_init(barrier(0), 1);
    mbarrier_init(barrier(1), 2);
    fence_mbarrier_init();
  }
  cluster_sync();
}

// The block of rank 0 fills a tile of both blocks.
void share() {
  if (thread_index() != 0) return;
  mbarrier_arrive_expect_tx(barrier(0), kBoxBytes);
  if (cluster_rank() == 0) tma_load_multicast(tile(0), input, barrier(0), kBoth, 0, 0);
}

Sm90Case of_cluster(const char *name, void (*kernel)(), unsigned threads = 64) {
  return {name, kernel, threads, 2};
}

}  // namespace

Sm90Cases cluster_cases() {
  return {
      of_cluster("clean_multicast",
                 [] {
                   start_cluster();
                   share();
                   mbarrier_wait_parity(barrier(0), 0);
                   read_16(slot(0));
                   warp_sync();
                   if (warp() == 0 && lane() < 2) mbarrier_arrive_remote(barrier(1), lane());
                   mbarrier_wait_parity(barrier(1), 0);
                 }),
      of_cluster("cluster_arrival_before_init",
                 [] {
                   if (thread_index() == 0) mbarrier_init(barrier(0), 1);
                   barrier_sync();
                   if (thread_index() == 0) mbarrier_arrive_remote(barrier(0), 1);
                   cluster_sync();
                 }),
      of_cluster("cluster_arrival_nobody_waits_for",
                 [] {
                   start_cluster();
                   if (thread_index() == 0 && cluster_rank() == 1) {
                     mbarrier_arrive_remote(barrier(1), 0);
                   }
                 }),
      of_cluster("cluster_arrival_of_no_block",
                 [] {
                   start_cluster();
                   if (thread_index() == 0) mbarrier_arrive_remote(barrier(1), 2);
                   cluster_sync();
                 }),
      of_cluster("cluster_deadlock",
                 [] {
                   start_cluster();
                   if (cluster_rank() == 1 && warp() == 0) mbarrier_wait_parity(barrier(0), 0);
                   cluster_sync();
                 }),
      of_cluster("multicast_to_nobody",
                 [] {
                   start_cluster();
                   if (thread_index() == 0) {
                     tma_load_multicast(tile(0), input, barrier(0), 0, 0, 0);
                   }
                   cluster_sync();
                 }),
      of_cluster("multicast_to_no_block",
                 [] {
                   start_cluster();
                   if (thread_index() == 0) {
                     tma_load_multicast(tile(0), input, barrier(0), 0b100, 0, 0);
                   }
                   cluster_sync();
                 }),
      of_cluster("multicast_not_waited_for",
                 [] {
                   start_cluster();
                   share();
                   if (cluster_rank() == 0) mbarrier_wait_parity(barrier(0), 0);
                   read_16(slot(0));
                   cluster_sync();
                 }),
      of_cluster("multicast_before_init",
                 [] {
                   if (thread_index() == 0) {
                     mbarrier_init(barrier(0), 1);
                     fence_mbarrier_init();
                   }
                   barrier_sync();
                   share();
                   mbarrier_wait_parity(barrier(0), 0);
                   cluster_sync();
                 }),
      of_cluster("multicast_over_reads",
                 [] {
                   start_cluster();
                   share();
                   mbarrier_wait_parity(barrier(0), 0);
                   read_16(slot(0));
                   barrier_sync();  // within each block, not across both
                   share();
                   mbarrier_wait_parity(barrier(0), 1);
                   cluster_sync();
                 }),
  };
}

}  // namespace cases
