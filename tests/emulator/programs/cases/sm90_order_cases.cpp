// The rules of words in global memory by which blocks hand over, and of the bulk copies that these
// words order: a small kernel of two blocks for each.
#include "flashsmith/ptx/global_exchange.cuh"
#include "flashsmith/ptx/global_wait.cuh"
#include "flashsmith/ptx/reduction.cuh"
#include "sm90_cases.h"

namespace cases {

using namespace sm90;

namespace {

float *sums() { return reinterpret_cast<float *>(tensors.output); }
// Each case has a word behind the sums, since words keep the values of earlier launches.
uint32_t *word(int i) { return reinterpret_cast<uint32_t *>(tensors.output) + kBoxBytes / 4 + i; }

void fill_both() {
  fill();
  fence_proxy_async();
  barrier_sync();
}
void store_row() {
  bulk_store(sums(), tile(0), kBoxBytes);
  tma_store_commit_group();
}
void add_row() {
  bulk_add(sums(), tile(0), kBoxBytes);
  tma_store_commit_group();
}
void load_sums() {
  mbarrier_arrive_expect_tx(barrier(0), kBoxBytes);
  bulk_load(tile(1), sums(), kBoxBytes, barrier(0));
  mbarrier_wait_parity(barrier(0), 0);
}

// One thread of the first block runs `first`, one of the second block runs `second`.
void by_blocks(void (*first)(), void (*second)()) {
  fill_both();
  if (thread_index() != 0) return;
  (block_index_x() == 0 ? first : second)();
}

}  // namespace

Sm90Cases order_cases() {
  constexpr unsigned kThreads = 128, kCluster = 1, kBlocks = 2;
  const auto of_two = [&](const char *name, void (*kernel)()) {
    return Sm90Case{name, kernel, kThreads, kCluster, kBlocks};
  };
  return {
      of_two("handed_on_to_nobody",
             [] {
               by_blocks(
                   [] {
                     store_row();
                     tma_store_wait_group<0>();
                     release_global(word(0), 1);
                   },
                   [] {
                     add_row();
                     tma_store_wait_group<0>();
                   });
             }),
      of_two("handed_on_before_it_is_written",
             [] {
               by_blocks(
                   [] {
                     store_row();
                     tma_store_wait_group_read<0>();
                     release_global(word(1), 1);
                     tma_store_wait_group<0>();
                   },
                   [] {
                     wait_global(word(1), 1);
                     fence_proxy_async_global();
                     add_row();
                     tma_store_wait_group<0>();
                   });
             }),
      of_two("handed_on_without_a_fence",
             [] {
               by_blocks(
                   [] {
                     store_row();
                     tma_store_wait_group<0>();
                     release_global(word(2), 1);
                   },
                   [] {
                     wait_global(word(2), 1);
                     add_row();
                     tma_store_wait_group<0>();
                   });
             }),
      of_two("read_before_it_is_handed_on",
             [] {
               start(1);
               by_blocks(
                   [] {
                     add_row();
                     tma_store_wait_group<0>();
                     release_global(word(3), 1);
                   },
                   [] {
                     fence_proxy_async_global();
                     wait_global(word(3), 1);
                     load_sums();
                   });
             }),
      of_two("counted_before_it_is_written",
             [] {
               start(1);
               by_blocks(
                   [] {
                     add_row();
                     tma_store_wait_group_read<0>();
                     thread_arrive_global(word(9));
                     tma_store_wait_group<0>();
                   },
                   [] {
                     wait_global(word(9), 1);
                     fence_proxy_async_global();
                     load_sums();
                   });
             }),
      of_two("replaced_before_it_is_written",
             [] {
               start(1);
               by_blocks(
                   [] {
                     add_row();
                     tma_store_wait_group_read<0>();
                     thread_replace_global(word(11), 0, 1);
                     tma_store_wait_group<0>();
                   },
                   [] {
                     wait_global(word(11), 1);
                     fence_proxy_async_global();
                     load_sums();
                   });
             }),
      of_two("waits_beside_one_who_polls",
             [] {
               by_blocks([] { thread_poll_global(word(12), 0); }, [] { wait_global(word(13), 1); });
             }),
      of_two(
          "waits_for_one_who_has_returned",
          [] { by_blocks([] { release_global(word(4), 1); }, [] { wait_global(word(4), 2); }); }),
      of_two("waits_for_each_other",
             [] {
               by_blocks(
                   [] {
                     wait_global(word(5), 1);
                     release_global(word(6), 1);
                   },
                   [] {
                     wait_global(word(6), 1);
                     release_global(word(5), 1);
                   });
             }),
      {"waits_for_a_block_that_never_starts",
       [] { by_blocks([] { wait_global(word(7), 1); }, [] {}); }},
      {"word_read_only",
       [] {
         by_blocks([] { release_global(reinterpret_cast<uint32_t *>(tensors.input), 1); }, [] {});
       }},
      {"word_past_end",
       [] {
         by_blocks([] { wait_global(reinterpret_cast<uint32_t *>(&tensors + 1), 1); }, [] {});
       }},
      // Kernels that break no rule.
      of_two("clean_hand_over",
             [] {
               by_blocks(
                   [] {
                     store_row();
                     tma_store_wait_group<0>();
                     release_global(word(8), 1);
                   },
                   [] {
                     wait_global(word(8), 1);
                     fence_proxy_async_global();
                     add_row();
                     tma_store_wait_group<0>();
                   });
             }),
      of_two("clean_count",
             [] {
               start(1);
               const auto add = [] {
                 add_row();
                 tma_store_wait_group<0>();
                 thread_arrive_global(word(10));
               };
               by_blocks(add, [] {
                 add_row();
                 tma_store_wait_group<0>();
                 thread_arrive_global(word(10));
                 wait_global(word(10), 2);
                 fence_proxy_async_global();
                 load_sums();
               });
             }),
      of_two("clean_polls",
             [] {
               by_blocks(
                   [] {
                     store_row();
                     tma_store_wait_group<0>();
                     if (thread_replace_global(word(14), 0, 1) != 0) release_global(nullptr, 1);
                     if (thread_replace_global(word(14), 0, 2) != 1) release_global(nullptr, 1);
                   },
                   [] {
                     while (thread_poll_global(word(14), 0) == 0) continue;
                     fence_proxy_async_global();
                     add_row();
                     tma_store_wait_group<0>();
                   });
             }),
      of_two("clean_polls_of_what_nobody_writes",
             [] {
               const auto poll = [] {
                 for (int i = 0; i < 3; i++) {
                   if (thread_poll_global(word(15), 0) != 0) release_global(nullptr, 1);
                 }
               };
               by_blocks(poll, poll);
             }),
      of_two("clean_sums_in_any_order",
             [] {
               const auto add = [] {
                 add_row();
                 tma_store_wait_group_read<0>();
               };
               by_blocks(add, add);
             }),
  };
}

}  // namespace cases
