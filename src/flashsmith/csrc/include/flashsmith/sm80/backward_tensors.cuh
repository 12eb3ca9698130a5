// Loads the backward's tiles from the tensors of a call, and stores its gradients. A block keeps
// two tiles of rows, A1 and A2, and visits two tiles of the other side, B1 and B2, at a time.
#pragma once

#include "flashsmith/attention/row_statistics.cuh"
#include "flashsmith/ptx/schedule.cuh"
#include "flashsmith/sm80/backward_gemm.cuh"
#include "flashsmith/sm80/backward_traits.cuh"
#include "flashsmith/sm80/column_groups.cuh"
#include "flashsmith/sm80/epilogue.cuh"
#include "flashsmith/sm80/may_see.cuh"
#include "flashsmith/sm80/smem_tile.cuh"

namespace flashsmith::sm80 {

// Visited rows: the index of the first row in the sequence, and the head of their queries.
struct Visit {
  int row, head;
};

// The rows of the sequence that a block visits, and the range of them that no mask cuts for any
// kept row.
struct VisitedRows {
  int begin, end, unmasked_begin, unmasked_end;

  FLASHSMITH_DEVICE bool masked(int row, int row_end) const {
    return row < unmasked_begin || row_end > unmasked_end;
  }
};

// The tensors of one batch entry.
template <typename Traits>
class BackwardTensors {
  using value_t = typename Traits::value_t;

  const BackwardKernelArgs &args_;
  const int batch_;

 public:
  const typename Traits::Sequence sequence;

  FLASHSMITH_DEVICE BackwardTensors(const BackwardKernelArgs &args, int batch)
      : args_(args), batch_(batch), sequence(args.problem, batch) {}

  FLASHSMITH_DEVICE const ProblemArgs &problem() const { return args_.problem; }
  FLASHSMITH_DEVICE const GradientArgs &gradient() const { return args_.gradient; }
  FLASHSMITH_DEVICE Head head(int head) const { return {head, batch_}; }
  FLASHSMITH_DEVICE int group_size() const { return problem().n_heads / problem().n_heads_kv; }

  // ---- loads tiles of kRows rows, from `row` of the sequence on; missing rows are zeros ----

  template <int kRows>
  FLASHSMITH_DEVICE void load_Q(ptx::shared_address tile, int head, int row) const {
    load<kRows>(tile, first_query(args_.Q, args_.Q_strides, head, row), args_.Q_strides.seq,
                problem().d_qk, sequence.seq_len_q() - row);
  }
  template <int kRows>
  FLASHSMITH_DEVICE void load_dO(ptx::shared_address tile, int head, int row) const {
    const GradientArgs &own = gradient();
    load<kRows>(tile, first_query(own.dO, own.dO_strides, head, row), own.dO_strides.seq,
                problem().d_v, sequence.seq_len_q() - row);
  }
  template <int kRows>
  FLASHSMITH_DEVICE void load_K(ptx::shared_address tile, int head_kv, int row) const {
    load<kRows>(tile, first_key(args_.K, args_.K_strides, head_kv, row), args_.K_strides.seq,
                problem().d_qk, sequence.seq_len_k() - row);
  }
  template <int kRows>
  FLASHSMITH_DEVICE void load_V(ptx::shared_address tile, int head_kv, int row) const {
    load<kRows>(tile, first_key(args_.V, args_.V_strides, head_kv, row), args_.V_strides.seq,
                problem().d_v, sequence.seq_len_k() - row);
  }

  // ---- stores gradients of this warp's rows, from `row` of the sequence on, through a tile's
  // rows;
  // ---- each of the warps that share rows has its own columns

  FLASHSMITH_DEVICE void store_dQ(const RowGradients<Traits> &dQ, ptx::shared_address rows,
                                  int head, int row) const {
    const GradientArgs &own = gradient();
    store(first_query(own.dQ, own.dQ_strides, head, row), own.dQ_strides.seq, dQ, own.softmax_scale,
          rows, sequence.seq_len_q() - row, problem().d_qk);
  }
  FLASHSMITH_DEVICE void store_dK(const RowGradients<Traits> &dK, ptx::shared_address rows,
                                  int head_kv, int row) const {
    const GradientArgs &own = gradient();
    store(first_key(own.dK, own.dK_strides, head_kv, row), own.dK_strides.seq, dK,
          own.softmax_scale, rows, sequence.seq_len_k() - row, problem().d_qk);
  }
  FLASHSMITH_DEVICE void store_dV(const RowGradients<Traits> &dV, ptx::shared_address rows,
                                  int head_kv, int row) const {
    const GradientArgs &own = gradient();
    store(first_key(own.dV, own.dV_strides, head_kv, row), own.dV_strides.seq, dV,
          scale_of_kept<Traits>(problem()), rows, sequence.seq_len_k() - row, problem().d_v);
  }

  // Returns the statistics of a query's block of kStatisticsRows.
  FLASHSMITH_DEVICE const float *statistics(int head, int row) const {
    const int block = first_statistics_block(gradient(), sequence, batch_) + row / kStatisticsRows;
    return statistics_of(gradient(), block, head);
  }

  // sums_place returns the index of the dQ sums of that block among those of all heads, and sums
  // returns these sums.
  FLASHSMITH_DEVICE int sums_place(int head, int row) const {
    const int block = first_statistics_block(gradient(), sequence, batch_) + row / kStatisticsRows;
    return head * gradient().all_statistics_blocks + block;
  }
  FLASHSMITH_DEVICE float *sums(int place) const {
    return sums_of<Traits::d_head>(gradient(), place, 0);
  }

 private:
  template <typename T>
  FLASHSMITH_DEVICE auto *first_query(T *tensor, const TensorStrides &strides, int head,
                                      int row) const {
    return first(tensor, strides, sequence.queries(), head, row);
  }
  template <typename T>
  FLASHSMITH_DEVICE auto *first_key(T *tensor, const TensorStrides &strides, int head,
                                    int row) const {
    return first(tensor, strides, sequence.keys(), head, row);
  }

  // The batch entry is recomputed, because the pointers derived from it are loop invariants, for
  // which registers are scarcer than instructions.
  template <typename T>
  static FLASHSMITH_DEVICE auto *first(T *tensor, const TensorStrides &strides,
                                       const RowOffset &place, int head, int row) {
    using Element = std::conditional_t<std::is_const_v<T>, const value_t, value_t>;
    return static_cast<Element *>(tensor) + ptx::recomputed(place.batch) * strides.batch +
           head * strides.head + (place.row + row) * strides.seq;
  }

  template <int kRows>
  static FLASHSMITH_DEVICE void load(ptx::shared_address tile, const value_t *rows,
                                     int64_t row_stride, int row_elements, int n_rows) {
    const int thread = ptx::recomputed(ptx::thread_index());
    TileLoader<Traits, kRows>(tile, rows, row_stride, row_elements, thread).load_partial(n_rows);
  }

  static FLASHSMITH_DEVICE void store(value_t *out, int64_t row_stride,
                                      const RowGradients<Traits> &gradients, float factor,
                                      ptx::shared_address rows, int n_rows, int row_elements) {
    constexpr int kRows = Traits::rows_per_warp / Traits::column_groups;
    const int first = column_group<Traits>() * kRows;  // of the rows that this warp writes
    sync_column_groups<Traits>();
#pragma unroll
    for (int m = 0; m < Traits::m_tiles; m++) {
      store_gradients_to_tile<Traits>(gradients[m], factor, rows, m * kMmaM);
    }
    sync_column_groups<Traits>();
    store_tile_to_O<Traits, kRows>(out + first * row_stride, row_stride,
                                   rows + first * SmemTile<Traits>::kRowBytes, n_rows - first,
                                   row_elements / kChunkElements);
  }
};

}  // namespace flashsmith::sm80
