// A configuration at compile time: every number that the kernel derives from it, each beside the
// assertion that keeps it sound. flashsmith.configs states the same conditions in Python
// (problems()).
#pragma once

#include <cstddef>

#include "flashsmith/attention/dropout.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/attention/softmax.cuh"
#include "flashsmith/ptx/mbarrier.cuh"
#include "flashsmith/sm90/arguments.cuh"
#include "flashsmith/sm90/shared_tile.cuh"
#include "flashsmith/types.cuh"

namespace flashsmith::sm90 {

// The rows of one wgmma, its step along K in 16-bit elements and in bytes, and the rows of it that
// a warp has.
constexpr int kWgmmaM = kQueryBoxRows, kWgmmaK = 16, kWgmmaKBytes = 32;
constexpr int kWarpRows = kOutputBoxRows;

constexpr int kMaxStages = 8;  // of K and of V

// Registers of a thread after setmaxnreg: those of the block at its launch, moved to the consumers.
struct RegisterSplit {
  int producer, consumer;
};

constexpr RegisterSplit register_split(int n_warpgroups) {
  switch (n_warpgroups) {
    case 2:
      return {24, 240};
    case 3:
      return {32, 160};
    default:
      return {32, 112};
  }
}

// The registers that each consumer thread gives up if the producer's warpgroup does more than copy.
constexpr int kToTranspose = 8;

constexpr RegisterSplit transposing_split(int n_warpgroups) {
  const RegisterSplit copying = register_split(n_warpgroups);
  return {copying.producer + n_warpgroups * kToTranspose, copying.consumer - kToTranspose};
}

template <Sm90ForwardKernelConfig CFG, Variant VARIANT = Variant{}>
struct KernelTraits {
  static constexpr Sm90ForwardKernelConfig config = CFG;
  using value_t = value_type<CFG.dtype>;
  static_assert(CFG.dtype == ScalarType::Half || CFG.dtype == ScalarType::BFloat16,
                "dtype is FP16 or BF16");
  // The element types of Q and K, and of P and V.
  static constexpr bool fp8_scores = CFG.fp8_scores, fp8_values = CFG.fp8_values;
  using score_t = std::conditional_t<fp8_scores, e4m3_t, value_t>;
  using weight_t = std::conditional_t<fp8_values, e4m3_t, value_t>;
  static_assert(!fp8_values || fp8_scores, "with V, Q and K have 8 bits, too");
  // With two_level, each block's P V is a separate sum, which is added to O in FP32.
  static constexpr bool two_level = CFG.two_level;
  static_assert(!two_level || fp8_values, "sums of 16-bit products lose nothing");

  using Mask = BandMask<VARIANT.causal, VARIANT.window>;
  using Score =
      ScoreChanges<value_t, VARIANT.softcap, VARIANT.alibi, VARIANT.bias, UserScore<VARIANT.score>>;
  using Sequence = SequenceOf<VARIANT.varlen>;
  using Dropout = DropoutOf<VARIANT.dropout>;
  static constexpr bool has_sinks = VARIANT.sinks, padded = VARIANT.padded;
  static constexpr bool paged = VARIANT.paged;
  static_assert(!paged || VARIANT.varlen, "sequences over pages have lengths of their own");
  static_assert(!paged || CFG.cluster_size == 1, "each block copies from pages for itself");
  static_assert(!paged || !CFG.fp8_scores, "K and V in pages have 16 bits");
  // A tile has the rows of all query heads that share a head of K and V.
  static constexpr bool packed_heads = CFG.packed_heads;
  static_assert(!packed_heads || !CFG.fp8_scores, "packed heads have 16 bits");
  static_assert(!packed_heads || !(Score::kChanges || Score::kHasRanges || Dropout::kDrops),
                "scores of packed heads are not changed, because each row has a head of its own");
  static_assert(!packed_heads || !(has_sinks || paged), "packed heads have no sinks and no pages");

  static constexpr int d_head = CFG.d_head, B_r = CFG.B_r, B_c = CFG.B_c;
  static constexpr int n_warpgroups = CFG.n_warpgroups, n_stages = CFG.n_stages;
  static constexpr int cluster_size = CFG.cluster_size, heads_per_group = CFG.heads_per_group;
  static_assert(d_head == 64 || d_head == 96 || d_head == 128 || d_head == 192 || d_head == 256,
                "d_head is 64, 96, 128, 192 or 256");
  static_assert(n_warpgroups >= 1 && n_warpgroups <= 4, "1 to 4 warpgroups share the rows of Q");
  static_assert(B_r == n_warpgroups * kWgmmaM, "each warpgroup works on the 64 rows of a wgmma");
  static_assert(B_c % kWgmmaK == 0 && B_c >= 16 && B_c <= 256,
                "B_c is N of one wgmma and K of the next: a multiple of 16 up to 256");
  static_assert(!paged || B_c / kPageRowMultiple <= kWarpSize, "a lane copies one box of a block");
  static_assert(!fp8_values || B_c % 32 == 0, "B_c is K of wgmma: 32 elements of 8 bits a step");
  static_assert(!fp8_values || CFG.cluster_size == 1, "each block transposes its own V");
  static_assert(n_stages >= 1 && n_stages <= kMaxStages, "there are 1 to 8 stages");
  static_assert(!CFG.overlap_softmax || n_stages >= 2,
                "the next block's K is in shared memory together with this one's V");
  static_assert(!CFG.ping_pong || n_warpgroups >= 2, "one warpgroup has nobody to take turns with");
  static_assert(!CFG.ping_pong_until_exp || (CFG.ping_pong && CFG.overlap_softmax),
                "turns are longer where there are turns, and a softmax beside a product");
  static_assert(CFG.persistent || !CFG.dynamic_queue, "only persistent blocks ask for more tiles");
  static_assert(!CFG.overlap_tiles || (CFG.persistent && CFG.overlap_softmax),
                "a tile runs into the next in persistent blocks that overlap the softmax");
  static_assert(cluster_size == 1 || cluster_size == 2, "a cluster has one or two blocks");
  static_assert(cluster_size == 1 || !CFG.dynamic_queue,
                "blocks of a cluster work on tiles side by side: they do not draw one by one");
  static_assert(CFG.heads_per_group >= 0, "0 is head by head");
  static_assert(CFG.lazy_rescale_log2 >= 0 && CFG.lazy_rescale_log2 <= 8,
                "P stays within 2^8, far from overflow in fp16");
  static_assert(!CFG.stale_maximum ||
                    (CFG.lazy_rescale_log2 > 0 &&
                     (CFG.lazy_rescale_log2 <= 4 || CFG.dtype == ScalarType::BFloat16)),
                "a stale maximum needs room for growth, and a P below 2^-4 the exponents of BF16");
  static_assert(!CFG.stale_maximum || CFG.fma_exponentials == 0,
                "a stale maximum leaves polynomials no registers: ptxas would serialise wgmma");
  static_assert(!CFG.skip_unseen || B_c > (fp8_values ? 32 : kWgmmaK),
                "half a block has whole steps of P V, and fewer than a block");
  static_assert(!CFG.skip_unseen || CFG.overlap_softmax,
                "only the step that overlaps a softmax has a copy for half of P");
  static_assert(CFG.fma_exponentials >= 0 && CFG.fma_exponentials <= 16,
                "0 to 16 of 16 exponentials are polynomials");

  static_assert(!CFG.stale_maximum || !fp8_values,
                "a stale maximum leaves P below 1, where e4m3 has no room for small weights");

  static constexpr bool branchless = fp8_values && CFG.lazy_rescale_log2 == 0;
  static constexpr SoftmaxPolicy softmax = {.fold_scale = true,
                                            .lazy_rescale_log2 = CFG.lazy_rescale_log2,
                                            .stale_maximum = CFG.stale_maximum,
                                            .fma_exponentials = CFG.fma_exponentials,
                                            .max_log2 = fp8_values          ? kE4m3MaxLog2
                                                        : CFG.stale_maximum ? 0
                                                                            : CFG.lazy_rescale_log2,
                                            .branchless = branchless,
                                            // A third warpgroup fills the gaps: it was slower.
                                            .compare_bits = branchless && n_warpgroups <= 2};

  static constexpr int n_threads = threads_per_block(CFG);
  static constexpr RegisterSplit registers =
      fp8_values ? transposing_split(n_warpgroups) : register_split(n_warpgroups);
  static constexpr int n_consumer_warps = n_warpgroups * 4;
  static constexpr int QK_steps = d_head * static_cast<int>(sizeof(score_t)) / kWgmmaKBytes;
  static constexpr int PV_steps = B_c * static_cast<int>(sizeof(weight_t)) / kWgmmaKBytes;
  static constexpr int Q_register_steps = CFG.Q_steps_in_registers;
  static constexpr bool Q_in_registers = Q_register_steps == QK_steps;
  static_assert(Q_register_steps >= 0 && Q_register_steps <= QK_steps,
                "up to all steps of Q K^T take Q from registers");

  // The layouts in shared memory. Each block of a cluster loads its share of the rows of K and V,
  // for all blocks. FP8 V is transposed there, to rows of B_c keys.
  static constexpr BoxedRows Q_tile = flashsmith::Q_tile(CFG), K_tile = flashsmith::K_tile(CFG),
                             V_tile = flashsmith::V_tile(CFG), O_rows = flashsmith::O_rows(CFG);
  static constexpr BoxedRows transposed_V_tile = boxed_rows(d_head, B_c, kFp8Bytes);
  static constexpr int KV_share_rows = map_KV_rows(CFG);
  // O is stored in rounds of n_staged_boxes boxes, by each warp or, if heads are packed, warpgroup.
  static constexpr int n_staged_boxes = staged_columns(CFG) / O_rows.columns;
  static constexpr int staging_bytes = n_staged_boxes * O_rows.box_bytes;
  static constexpr int n_stagings = packed_heads ? n_warpgroups : n_consumer_warps;

  static constexpr int n_barriers = flashsmith::n_barriers(CFG);
  struct SharedMemory {
    SharedTile<Q_tile.bytes> Q;
    SharedTile<K_tile.bytes> K[n_stages];
    SharedTile<V_tile.bytes> V[n_stages];
    [[no_unique_address]] Several<SharedTile<V_tile.bytes>, transposed_stages(CFG)> arriving_V;
    [[no_unique_address]] Several<SharedTile<O_rows.box_bytes>, n_stagings * n_staged_boxes> O;
    uint32_t queue[2];
    uint32_t
        own_entry[2];  // the first word: the table entry of the block's only tile (tile_order.cuh)
    [[no_unique_address]] Several<uint32_t, fp8_values ? kMaxStages : 0> ends;
    uint64_t barriers[n_barriers];
  };
  static constexpr int Q_offset = offsetof(SharedMemory, Q);
  static constexpr int K_offset = offsetof(SharedMemory, K), K_bytes = K_tile.bytes;
  static constexpr int V_offset = offsetof(SharedMemory, V), V_bytes = V_tile.bytes;
  static constexpr int arriving_V_offset = offsetof(SharedMemory, arriving_V);
  static constexpr int O_offset = offsetof(SharedMemory, O);
  static constexpr int queue_offset = offsetof(SharedMemory, queue);
  static constexpr int own_entry_offset = offsetof(SharedMemory, own_entry);
  static constexpr int end_offset = offsetof(SharedMemory, ends);
  static constexpr int barriers_offset = offsetof(SharedMemory, barriers);
  static_assert(sizeof(SharedMemory) == shared_memory_bytes(CFG),
                "the host asks for as much shared memory as the kernel uses");
};

}  // namespace flashsmith::sm90
