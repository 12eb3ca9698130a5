// The rules of wgmma, named barriers and register counts: a small kernel for each.
#include "sm90_cases.h"

namespace cases {

using namespace sm90;

namespace {

constexpr int kN = 16;
struct Product {
  float c[kN / 2];
  uint32_t a[4] = {};
};
MatrixDescriptor operand(int i = 0) { return k_major_descriptor(tile(i), Swizzle::bytes_128); }
void issue(Product &product, bool a_in_registers = true, int b = 0) {
  if (a_in_registers) {
    wgmma_registers<half_t, kN, Major::k>(product.c, product.a, operand(b), false);
  } else {
    wgmma_shared<half_t, kN, Major::k, Major::k>(product.c, operand(), operand(b), false);
  }
}
void multiply(Product &product) {
  wgmma_fence();
  issue(product);
  wgmma_commit_group();
}
}  // namespace

Sm90Cases wgmma_cases() {
  return {
      // wgmma.
      {"wgmma_uninitialised",
       [] {
         Product product;
         multiply(product);
         wgmma_wait_group<0>();
       }},
      {"wgmma_operand_not_fenced",
       [] {
         Product product;
         fill();
         barrier_sync();
         multiply(product);
         wgmma_wait_group<0>();
       }},
      {"wgmma_operand_not_ordered",
       [] {
         Product product;
         fill();
         fence_proxy_async();
         multiply(product);
         wgmma_wait_group<0>();
       }},
      {"wgmma_operand_in_flight",
       [] {
         Product product;
         start(1);
         if (thread_index() == 0) load(0, 0);
         if (thread_index() == 0) load(1, 0);
         multiply(product);
         wgmma_wait_group<0>();
       }},
      {"wgmma_operand_overwritten",
       [] {
         Product product;
         fill_and_fence();
         multiply(product);
         barrier_sync();
         fill();
         wgmma_wait_group<0>();
       }},
      {"wgmma_operand_overwritten_after_one_wait",
       [] {
         Product product;
         fill_and_fence();
         multiply(product);
         wgmma_wait_group<0>();
         start(1);
         Product next;
         multiply(next);
         if (thread_index() == 0) load(0, 0);
         wgmma_wait_group<0>();
         mbarrier_wait_parity(barrier(0), 0);
       }},
      {"wgmma_registers_not_fenced",
       [] {
         Product product;
         fill_and_fence();
         issue(product);
         wgmma_commit_group();
         wgmma_wait_group<0>();
       }},
      {"wgmma_registers_not_fenced_again",
       [] {
         Product product;
         fill_and_fence();
         multiply(product);
         wgmma_wait_group<0>();
         product.c[0] *= 2;
         issue(product, false);
         wgmma_commit_group();
         wgmma_wait_group<0>();
       }},
      {"wgmma_accumulators_written",
       [] {
         Product product;
         fill_and_fence();
         multiply(product);
         product.c[3] *= 0.5f;
         wgmma_wait_group<0>();
       }},
      {"wgmma_a_written",
       [] {
         Product product;
         fill_and_fence();
         multiply(product);
         product.a[1] = 7;
         wgmma_wait_group<0>();
       }},
      {"wgmma_not_waited_for",
       [] {
         Product product;
         fill_and_fence();
         multiply(product);
         wgmma_wait_group<1>();
       }},
      {"wgmma_not_committed",
       [] {
         Product product;
         fill_and_fence();
         wgmma_fence();
         issue(product);
         wgmma_wait_group<0>();
       }},
      {"wgmma_of_one_warp",
       [] {
         Product product;
         fill_and_fence();
         if (warp() == 0) {
           multiply(product);
           wgmma_wait_group<0>();
         }
       }},
      {"wgmma_of_two_kinds",
       [] {
         Product product;
         fill_and_fence();
         wgmma_fence();
         issue(product, warp() < 2);
         wgmma_commit_group();
         wgmma_wait_group<0>();
       }},
      {"wgmma_of_two_operands",
       [] {
         Product product;
         fill_and_fence();
         wgmma_fence();
         issue(product, true, lane() % 2);
       }},
      {"wgmma_base_offset",
       [] {
         Product product;
         fill_and_fence();
         wgmma_fence();
         wgmma_registers<half_t, kN, Major::k>(product.c, product.a, operand() | uint64_t{1} << 49,
                                               false);
         wgmma_commit_group();
         wgmma_wait_group<0>();
       }},
      {"wgmma_past_end",
       [] {
         Product product;
         fill_and_fence();
         wgmma_fence();
         wgmma_registers<half_t, kN, Major::k>(product.c, product.a, operand(15), false);
         wgmma_commit_group();
         wgmma_wait_group<0>();
       }},
      {"wgmma_outside_warpgroup",
       [] {
         Product product;
         multiply(product);
       },
       64},
      // Named barriers and registers.
      {"named_deadlock",
       [] {
         if (warp() == 0) named_barrier_sync(3, 64);
       }},
      {"named_barrier_of_two_sizes", [] { named_barrier_sync(1, warp() < 2 ? 64 : 96); }},
      {"named_barrier_of_part_of_a_warp", [] { named_barrier_sync(1, 48); }},
      {"named_barrier_number", [] { named_barrier_sync(16, 128); }},
      {"named_barrier_left_over",
       [] {
         if (warp() == 1) named_barrier_arrive(1, 64);
       }},
      {"named_barrier_orders_only_its_warps",
       [] {
         if (warp() == 0) store_shared_16(slot(0), {});
         if (warp() < 2) named_barrier_sync(1, 64);
         if (warp() == 3) read_16(tile(0));
       }},
      {"named_arrival_orders_nothing_after",
       [] {
         if (warp() == 0) store_shared_16(slot(0), {});
         if (warp() == 0) named_barrier_sync(1, 64);
         if (warp() == 1) {
           named_barrier_arrive(1, 64);
           read_16(tile(0) + lane() * 16);
         }
       }},
      {"named_barrier_forgets_the_pair_before",  // the warps meet in pairs, in any order
       [] {
         if (warp() == 0) store_shared_16(slot(0), {});
         named_barrier_sync(1, 64);
         if (warp() != 0) read_16(tile(0) + lane() * 16);
       }},
      {"registers_exhausted",
       [] {
         if (warp() < 4) decrease_registers<104>();
         if (warp() >= 4) increase_registers<240>();
       },
       384},
      {"registers_of_one_warp",
       [] {
         if (warp() == 2) decrease_registers<24>();
       }},
      {"registers_decreased_to_more", [] { decrease_registers<240>(); }, 384},
      // Kernels that break no rule.
      {"clean_one_arrival_for_the_warpgroup",
       [] {
         start(3);
         Product product;
         if (thread_index() == 0) {
           load(0, 0);
           mbarrier_arrive_expect_tx(barrier(1), kBoxBytes);
           tma_load(tile(1), input, barrier(1), 0, 8);
         }
         mbarrier_wait_parity(barrier(0), 0);
         mbarrier_wait_parity(barrier(1), 0);
         multiply(product);
         wgmma_wait_group<0>();
         if (thread_index() == 96) mbarrier_arrive(barrier(2));
         if (thread_index() == 0) {
           mbarrier_wait_parity(barrier(2), 0);
           load(0, 0);
         }
         mbarrier_wait_parity(barrier(0), 1);
         read_16(slot(0));
       }},
      {"clean_two_groups_in_flight",
       [] {
         Product one, two;
         fill_and_fence();
         multiply(one);
         multiply(two);
         wgmma_wait_group<1>();
         one.c[0] *= 2;
         wgmma_wait_group<0>();
         two.c[0] *= 2;
       }},
      {"clean_ping_pong",
       [] {
         const int group = warp() / 4;
         if (group == 1) named_barrier_arrive(1, 256);
         for (int i = 0; i < 3; ++i) {
           named_barrier_sync(1 + group, 256);
           if (i + group > 0) load_shared_4(tile(0) + thread_index() % 128 * 4);
           warp_sync();
           store_shared_4(tile(0) + thread_index() % 128 * 4, static_cast<uint32_t>(i));
           named_barrier_arrive(2 - group, 256);
         }
         if (group == 0) named_barrier_sync(1, 256);
       },
       256},
      {"clean_registers",
       [] {
         if (warp() < 4) {
           decrease_registers<24>();
         } else {
           increase_registers<240>();
         }
       },
       384},
  };
}

}  // namespace cases
