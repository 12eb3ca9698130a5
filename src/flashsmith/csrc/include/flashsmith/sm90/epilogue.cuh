// Stores O / l: through shared memory by bulk copies, or from registers.
#pragma once

#include <type_traits>

#include "flashsmith/attention/output.cuh"
#include "flashsmith/ptx/barrier.cuh"
#include "flashsmith/ptx/fence.cuh"
#include "flashsmith/ptx/memory.cuh"
#include "flashsmith/ptx/mma.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm90/gemm.cuh"
#include "flashsmith/sm90/named_barrier.cuh"
#include "flashsmith/sm90/packed_heads.cuh"
#include "flashsmith/sm90/rows.cuh"

namespace flashsmith::sm90 {

// Packs the accumulators of 16 columns, from 16 * `pair` on, scaled by row, to an operand of
// stmatrix_x4 or two words of each of two rows.
template <typename Traits>
FLASHSMITH_DEVICE void pack_columns(uint32_t (&words)[4], const OAccumulator<Traits> &O, int pair,
                                    const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    words[i] = ptx::pack<typename Traits::value_t>(O[pair * 8 + 2 * i] * factor[i % 2],
                                                   O[pair * 8 + 2 * i + 1] * factor[i % 2]);
  }
}

// The threads that store rows together: a warp or, if heads are packed, a warpgroup, whose tile
// then has WarpRows of the warpgroup's first query and of a head of keys.
template <typename Traits>
struct StoringThreads {
  static FLASHSMITH_DEVICE int index() {
    return ptx::thread_index() % (Traits::packed_heads ? kWarpgroupSize : kWarpSize);
  }
  static FLASHSMITH_DEVICE void meet() {
    if constexpr (Traits::packed_heads) {
      const int warpgroup = ptx::thread_index() / kWarpgroupSize - 1;
      const int barrier = ptx::named_barrier_of(NamedBarrier::own_warps, warpgroup);
      ptx::named_barrier_sync(barrier, kWarpgroupSize);
    } else {
      ptx::warp_sync();
    }
  }
};

// Returns one of the lane's rows of a tile.
template <typename Traits>
FLASHSMITH_DEVICE LaneRow row_of_lane(const Sm90ForwardKernelArgs &args, const WarpRows &rows,
                                      int lane, int half) {
  if constexpr (Traits::packed_heads) {
    return PackedRows(args.group, rows.row).row(half, rows.head);
  } else {
    return {.row = rows.row + first_row(lane) + half * kRowsPerHalf, .head = rows.head};
  }
}

// Stores the boxes from `first` to before `end`, each by a bulk copy that one thread issues.
// `staging` is the storing threads' memory, which copies of earlier boxes may still be reading.
template <typename Traits>
FLASHSMITH_DEVICE void store_boxes(const Sm90ForwardKernelArgs &args, const OAccumulator<Traits> &O,
                                   const WarpRows &rows, const float (&factor)[2],
                                   ptx::shared_address staging, int first, int end) {
  constexpr int kPairsPerBox = Traits::O_rows.columns / 16;
  using Threads = StoringThreads<Traits>;
  const int thread = ptx::recomputed(Threads::index());
  const int lane = Traits::packed_heads ? thread % kWarpSize : thread;
  const int row = Traits::packed_heads ? thread / kWarpSize * kWarpRows + lane % 16 : lane % 16;
  const int permutation = chunk_permutation<Traits::O_rows.row_bytes>(row);
  const typename Traits::Sequence sequence(args.problem, rows.batch);
  const int head = Traits::packed_heads ? rows.head * args.group.size : rows.head;
  const Rows sequence_rows{sequence.queries(), sequence.seq_len_q(), head, args.O_batch_rows};
  if (thread == 0) ptx::tma_store_wait_group_read<0>();
  Threads::meet();
#pragma unroll
  for (int pair = first * kPairsPerBox; pair < end * kPairsPerBox; pair++) {
    uint32_t words[4];
    pack_columns<Traits>(words, O, pair, factor);
    const int chunk = pair % kPairsPerBox * 2 + lane / 16;
    ptx::stmatrix_x4(staging + (pair / kPairsPerBox - first) * Traits::O_rows.box_bytes +
                         row * Traits::O_rows.row_bytes + (chunk ^ permutation) * 16,
                     words);
  }
  ptx::fence_proxy_async();
  Threads::meet();
  if (thread != 0) return;
#pragma unroll
  for (int box = first; box < end; box++) {
    store_rows<Traits>(args.O_map, staging + (box - first) * Traits::O_rows.box_bytes,
                       box * Traits::O_rows.columns, rows.row, sequence_rows);
  }
  ptx::tma_store_commit_group();
}

template <typename Traits>
FLASHSMITH_DEVICE void store_by_copy(const Sm90ForwardKernelArgs &args,
                                     const OAccumulator<Traits> &O, const WarpRows &rows,
                                     const float (&factor)[2], ptx::shared_address staging) {
  constexpr int kRound = Traits::n_staged_boxes;
#pragma unroll
  for (int first = 0; first < Traits::O_rows.n_boxes; first += kRound) {
    const int end =
        first + kRound < Traits::O_rows.n_boxes ? first + kRound : Traits::O_rows.n_boxes;
    store_boxes<Traits>(args, O, rows, factor, staging, first, end);
  }
}

// Stores 16 bytes a lane: the four lanes of a row exchange words until each has a whole chunk.
template <typename Traits>
FLASHSMITH_DEVICE void store_from_registers(const Sm90ForwardKernelArgs &args,
                                            const OAccumulator<Traits> &O, const WarpRows &rows,
                                            const float (&factor)[2]) {
  using value_t = typename Traits::value_t;
  const typename Traits::Sequence sequence(args.problem, rows.batch);
  const int lane = ptx::thread_index() % kWarpSize, quad_lane = lane % 4;
  const RowOffset place = sequence.queries();
  const int head = Traits::packed_heads ? 0 : rows.head;
  value_t *first = static_cast<value_t *>(args.problem.O) +
                   place.batch * args.problem.O_strides.batch + head * args.problem.O_strides.head +
                   place.row * args.problem.O_strides.seq;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const LaneRow own = row_of_lane<Traits>(args, rows, lane, half);
    value_t *out = first + own.row * args.problem.O_strides.seq + quad_lane * 8;
    if constexpr (Traits::packed_heads) out += own.head * args.problem.O_strides.head;
#pragma unroll
    for (int column = 0; column < Traits::d_head; column += 32) {
      ptx::Chunk chunk;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int element = column / 2 + 4 * i + 2 * half;
        chunk.word[i] =
            ptx::pack<value_t>(O[element] * factor[half], O[element + 1] * factor[half]);
      }
      transpose_quad(chunk.word);
      const bool is_there = !Traits::padded || column + quad_lane * 8 < args.problem.d_v;
      if (own.row < sequence.seq_len_q() && is_there) {
        ptx::thread_store_global_16(out + column, chunk);
      }
    }
  }
}

// Writes a warp's rows of O, and their LSE if the caller wants it; all warps of a warpgroup call
// this if heads are packed.
template <typename Traits>
FLASHSMITH_DEVICE void store_tile(const Sm90ForwardKernelArgs &args, const OAccumulator<Traits> &O,
                                  const Softmax<Traits> &softmax, const WarpRows &rows,
                                  ptx::shared_address staging) {
  float factor[kHalves];
  if constexpr (Traits::packed_heads) {
    finish_rows(factor, softmax, args.problem, rows.batch,
                [&](int lane, int half) { return row_of_lane<Traits>(args, rows, lane, half); });
  } else {
    finish_rows(factor, softmax, args.problem, rows);
  }
  if constexpr (Traits::fp8_values) {
    const float scale = load_scale(args.V_scale, rows.batch, head_of_keys(args.problem, rows.head));
    factor[0] *= scale;
    factor[1] *= scale;
  }
  if constexpr (Traits::config.tma_store) {
    store_by_copy<Traits>(args, O, rows, factor, staging);
  } else {
    store_from_registers<Traits>(args, O, rows, factor);
  }
}

}  // namespace flashsmith::sm90
