// A configuration at compile time: every number that the kernel derives from it, each beside the
// assertion that keeps it sound. flashsmith.configs states the same conditions in Python
// (problems()).
#pragma once

#include <cstddef>
#include <type_traits>

#include "flashsmith/attention/dropout.cuh"
#include "flashsmith/attention/mask.cuh"
#include "flashsmith/attention/score.cuh"
#include "flashsmith/attention/sequence.cuh"
#include "flashsmith/attention/softmax.cuh"
#include "flashsmith/flash_attention.cuh"
#include "flashsmith/sm80/fragment_schedule.cuh"
#include "flashsmith/types.cuh"

namespace flashsmith::sm80 {

// The shape of mma.m16n8k16, and of the 16-byte chunk that ldmatrix, cp.async and stores move.
constexpr int kMmaM = 16, kMmaN = 8, kMmaK = 16;
constexpr int kChunkBytes = 16, kElementBytes = 2;
constexpr int kChunkElements = kChunkBytes / kElementBytes;

constexpr bool is_load_count(int n) { return n == 0 || (n >= 2 && (n & (n - 1)) == 0); }

// The number of rows, columns and mma tiles in a configuration's tiles.
template <FlashForwardKernelConfig CFG>
struct ForwardKernelTileShapes {
  static constexpr int d_head = CFG.d_head, B_r = CFG.B_r, B_c = CFG.B_c, n_warps = CFG.n_warps;
  static_assert(d_head == 64 || d_head == 96 || d_head == 128 || d_head == 192 || d_head == 256,
                "d_head is 64, 96, 128, 192 or 256");
  static_assert(B_r == 64 || B_r == 128, "B_r is 64 or 128");
  static_assert(B_c == 32 || B_c == 64 || B_c == 128, "B_c is 32, 64 or 128");
  static_assert(n_warps == 4 || n_warps == 8, "n_warps is 4 or 8");
  static_assert(B_r % (n_warps * kMmaM) == 0, "each warp works on at least 16 rows of Q");

  static constexpr int rows_per_warp = B_r / n_warps;
  static constexpr int m_tiles = rows_per_warp / kMmaM;  // mma tiles of a warp, along its rows
  static constexpr int S_n_tiles = B_c / kMmaN;          // along the columns of S = Q K^T
  static constexpr int O_n_tiles = d_head / kMmaN;       // along the columns of O = P V
  static constexpr int QK_fragments = d_head / kMmaK;    // mma steps of Q K^T
  static constexpr int PV_fragments = B_c / kMmaK;       // mma steps of P V
};

template <FlashForwardKernelConfig CFG, Variant VARIANT = Variant{}>
struct StaticForwardKernelConfig : ForwardKernelTileShapes<CFG> {
  static constexpr FlashForwardKernelConfig config = CFG;
  using N = ForwardKernelTileShapes<CFG>;  // Traits::B_r is Traits::N::B_r, through the base
  using value_t = value_type<CFG.dtype>;
  static_assert(CFG.dtype == ScalarType::Half || CFG.dtype == ScalarType::BFloat16,
                "dtype is FP16 or BF16");

  using Mask = BandMask<VARIANT.causal, VARIANT.window>;
  using Score =
      ScoreChanges<value_t, VARIANT.softcap, VARIANT.alibi, VARIANT.bias, UserScore<VARIANT.score>>;
  using Sequence = SequenceOf<VARIANT.varlen>;
  using Dropout = DropoutOf<VARIANT.dropout>;
  static constexpr bool has_sinks = VARIANT.sinks, padded = VARIANT.padded;
  static_assert(!VARIANT.paged, "the sm80 family copies K and V from rows, not from pages");
  static constexpr SoftmaxPolicy softmax = {.fold_scale = CFG.optimized_softmax,
                                            .lazy_rescale_log2 = CFG.optimized_softmax ? 8 : 0,
                                            .stale_maximum = false,
                                            .fma_exponentials = 0};

  static constexpr int n_threads = threads_per_block(CFG), cluster_size = 1;
  static constexpr bool packed_heads = false;  // a tile has one head of Q
  static constexpr int row_padding = 0;        // of tiles in shared memory

  static_assert(is_load_count(CFG.Q_mma_load_K_fragments) &&
                    is_load_count(CFG.K_mma_load_K_fragments) &&
                    is_load_count(CFG.V_mma_load_K_fragments),
                "fragments loaded at a time are 0 (all of them) or a power of two, and not 1");
  static_assert(CFG.Q_mma_load_K_fragments <= N::QK_fragments &&
                    CFG.K_mma_load_K_fragments <= N::QK_fragments,
                "Q and K have d_head / 16 fragments");
  static_assert(CFG.V_mma_load_K_fragments <= N::PV_fragments, "V has B_c / 16 fragments");

  static constexpr int accumulator_registers = N::m_tiles * (N::S_n_tiles + N::O_n_tiles) * 4;
  static_assert(accumulator_registers <= 224,
                "the accumulators of S and O leave 31 registers for fragments and addresses");

  // All fragments of Q, if loaded at once, stay in registers for the whole kernel.
  static constexpr bool Q_in_registers = CFG.Q_mma_load_K_fragments == 0;

  // The number of blocks that should be resident on an SM. Given this number, ptxas keeps within
  // the registers that it leaves each thread, and uses them; by itself ptxas misses a block by a
  // register or two, or stops far below.
  static constexpr int kRegistersPerSM = 65536;
  static constexpr int fragment_and_address_registers =
      24 + 16 * N::m_tiles + (Score::kChanges || Dropout::kDrops ? 32 : 0);
  static constexpr int blocks_per_SM =
      kRegistersPerSM / (n_threads * (accumulator_registers + fragment_and_address_registers +
                                      (Q_in_registers ? N::m_tiles * N::QK_fragments * 4 : 0)));

  using QSchedule = FragmentSchedule<N::QK_fragments, CFG.Q_mma_load_K_fragments,
                                     CFG.mma_double_buffer_loads && !Q_in_registers>;
  using KSchedule =
      FragmentSchedule<N::QK_fragments, CFG.K_mma_load_K_fragments, CFG.mma_double_buffer_loads>;
  using VSchedule =
      FragmentSchedule<N::PV_fragments, CFG.V_mma_load_K_fragments, CFG.mma_double_buffer_loads>;

  // One tile each of Q, K and V. O is stored through Q's tile, which is free by then.
  struct SharedMemory {
    alignas(128) value_t Q[N::B_r * N::d_head];
    alignas(128) value_t K[N::B_c * N::d_head];
    alignas(128) value_t V[N::B_c * N::d_head];
  };
  static constexpr int Q_offset = offsetof(SharedMemory, Q);
  static constexpr int K_offset = offsetof(SharedMemory, K);
  static constexpr int V_offset = offsetof(SharedMemory, V);
  static_assert(sizeof(SharedMemory) == shared_memory_bytes(CFG),
                "the host asks for as much shared memory as the kernel uses");
};

}  // namespace flashsmith::sm80
