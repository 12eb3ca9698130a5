// dQ of the split backward: a warpgroup keeps 64 queries, and their dQ in registers while it walks
// over the blocks of keys that they see. Another warpgroup loads.
//
// dQ is accumulated a block late, so that all products of a step are issued at once: dQ of the
// previous block, S, dP |; the exponentials run under dP.
#pragma once

#include "flashsmith/attention/block_range.cuh"
#include "flashsmith/sm90/backward_epilogue.cuh"
#include "flashsmith/sm90/backward_gemm.cuh"
#include "flashsmith/sm90/backward_producer.cuh"
#include "flashsmith/sm90/head_groups.cuh"
#include "flashsmith/sm90/split_backward_pipeline.cuh"

namespace flashsmith::sm90 {

// The work of a thread block: the queries of a head from `row` on, and the blocks of keys that they
// see.
template <typename Traits>
struct QueryTile {
  static constexpr int kRows = Traits::n_warpgroups * Traits::B_r;

  typename Traits::Sequence sequence;
  int row, head, batch;
  int begin = 0, end = 0;                    // blocks of keys
  int unmasked_begin = 0, unmasked_end = 0;  // keys that all rows see

  FLASHSMITH_DEVICE explicit QueryTile(const Sm90BackwardKernelArgs &args)
      : QueryTile(args.problem, place_of_block(args)) {}

 private:
  FLASHSMITH_DEVICE QueryTile(const ProblemArgs &problem, const TileOfHead &place)
      : sequence(problem, place.head / problem.n_heads),
        row(place.tile * kRows),
        head(place.head % problem.n_heads),
        batch(place.head / problem.n_heads) {
    using Mask = typename Traits::Mask;
    end = KV_blocks_end<Traits>(problem, sequence, row + kRows);
    begin = KV_blocks_begin<Traits>(problem, sequence, row, end);
    unmasked_begin = Mask::first(problem, sequence, row + kRows - 1);
    unmasked_end = Mask::last(problem, sequence, row, sequence.seq_len_k() - 1) + 1;
  }

  // Returns the block's queries. Causal queries near the end see the most keys: they start first.
  static FLASHSMITH_DEVICE TileOfHead place_of_block(const Sm90BackwardKernelArgs &args) {
    const ProblemArgs &problem = args.problem;
    const int tiles_per_head = (problem.seq_len_q + kRows - 1) / kRows;
    TileOfHead place = tile_in_groups(ptx::block_index_x(), tiles_per_head,
                                      problem.n_heads * problem.batch, args.query_heads_per_group);
    if (Traits::Mask::kAhead) place.tile = tiles_per_head - 1 - place.tile;
    return place;
  }
};

template <typename Traits>
class dQProducer {
  using Barriers = dQBarriers<Traits>;
  using Memory = dQMemory<Traits>;

  const Sm90BackwardKernelArgs &args_;
  const QueryTile<Traits> &tile_;
  RingPosition<Traits::K_stages> K_stage_;
  RingPosition<Traits::V_stages> V_stage_;

 public:
  FLASHSMITH_DEVICE dQProducer(const Sm90BackwardKernelArgs &args, const QueryTile<Traits> &tile)
      : args_(args), tile_(tile) {}

  FLASHSMITH_DEVICE void run() {
    const int heads_per_key_head = args_.problem.n_heads / args_.problem.n_heads_kv;
    const RowOffset place = tile_.sequence.keys();
    const int length = tile_.sequence.seq_len_k(), head = tile_.head / heads_per_key_head;
    const Rows K{place, length, head, args_.K_batch_rows},
        V{place, length, head, args_.V_batch_rows};
    load_queries();
#pragma unroll 1
    for (int block = tile_.begin; block < tile_.end; block++) {
      load(Memory::K, Barriers::K(K_stage_.buffer), K_stage_, args_.K_map, block, K);
      load(Memory::V, Barriers::V(V_stage_.buffer), V_stage_, args_.V_map, block, V);
    }
  }

 private:
  FLASHSMITH_DEVICE void load_queries() {
    const ptx::shared_address shared = ptx::shared_memory();
    const RowOffset place = tile_.sequence.queries();
    const int length = tile_.sequence.seq_len_q();
#pragma unroll 1  // the thread has few registers
    for (int warpgroup = 0; warpgroup < Traits::n_warpgroups; warpgroup++) {
      const ptx::shared_address barrier = Barriers::queries(warpgroup);
      const int row = tile_.row + warpgroup * Traits::B_r;
      const int offset = warpgroup * Traits::tile_bytes;
      ptx::mbarrier_arrive_expect_tx(barrier, 2 * Traits::tile_bytes);
      load_tile<Traits, Traits::box_bytes>(shared + Memory::Q + offset, args_.Q_map, barrier, row,
                                           {place, length, tile_.head, args_.Q_batch_rows});
      load_tile<Traits, Traits::box_bytes>(shared + Memory::dO + offset, args_.dO_map, barrier, row,
                                           {place, length, tile_.head, args_.dO_batch_rows});
    }
  }

  template <int kStages>
  FLASHSMITH_DEVICE void load(int first, const BufferBarriers &barriers,
                              RingPosition<kStages> &stage, const ptx::TensorMap &map, int block,
                              const Rows &rows) {
    ptx::mbarrier_wait_parity(barriers.empty, stage.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(barriers.full, Traits::tile_bytes);
    load_tile<Traits, Traits::box_bytes>(
        ptx::shared_memory() + first + stage.buffer * Traits::tile_bytes, map, barriers.full,
        block * Traits::B_c, rows);
    stage.advance();
  }
};

template <typename Traits>
class dQConsumer {
  using value_t = typename Traits::value_t;
  using Barriers = dQBarriers<Traits>;
  using Memory = dQMemory<Traits>;

  const Sm90BackwardKernelArgs &args_;
  const QueryTile<Traits> &tile_;
  const int warpgroup_;

  KeyOperand<Traits, 0> Q_, dO_;
  KeyAccumulator<Traits> dQ_;
  ScoreAccumulator<Traits> S_, dP_;  // later P and dS
  ScoreOperand<Traits> dS_operand_;
  const typename Traits::Dropout dropout_;
  float lse_[kHalves], delta_[kHalves];  // of the lane's rows

  RingPosition<Traits::K_stages> K_stage_;
  RingPosition<Traits::V_stages> V_stage_;
  int block_;

 public:
  FLASHSMITH_DEVICE dQConsumer(const Sm90BackwardKernelArgs &args, const QueryTile<Traits> &tile,
                               int warpgroup)
      : args_(args),
        tile_(tile),
        warpgroup_(warpgroup),
        Q_(Memory::Q + warpgroup * Traits::tile_bytes),
        dO_(Memory::dO + warpgroup * Traits::tile_bytes),
        dropout_(args.problem, {tile.head, tile.batch}),
        block_(tile.begin) {}

  // Computes dQ, without its factor.
  FLASHSMITH_DEVICE void run() {
#pragma unroll
    for (int i = 0; i < Traits::d_head / 2; i++) dQ_[i] = 0.f;
    load_statistics();
    ptx::mbarrier_wait_parity(Barriers::queries(warpgroup_), 0);
    issue_scores();
    finish_scores();
#pragma unroll 1
    for (block_++; block_ < tile_.end; block_++) step();
    issue_dQ();
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(dQ_);
  }

  FLASHSMITH_DEVICE void store() const {
    const GradientArgs &gradient = args_.gradient;
    const TensorStrides &strides = gradient.dQ_strides;
    const RowOffset place = tile_.sequence.queries();
    const int row = first_row_of_warp();
    const GradientRows<value_t> rows{
        static_cast<value_t *>(gradient.dQ) + place.batch * strides.batch +
            tile_.head * strides.head + (place.row + row) * strides.seq,
        strides.seq, tile_.sequence.seq_len_q() - row, args_.problem.d_qk};
    store_fragment<Traits>(rows, dQ_, gradient.softmax_scale);
  }

 private:
  static FLASHSMITH_DEVICE int lane() { return ptx::thread_index() % kWarpSize; }

  FLASHSMITH_DEVICE int first_row_of_warp() const {
    const int warp = ptx::thread_index() % kWarpgroupSize / kWarpSize;
    return tile_.row + warpgroup_ * Traits::B_r + warp * kWarpRows;
  }

  // Loads the statistics of the lane's rows. Rows beyond the sequence get those of queries that see
  // no key.
  FLASHSMITH_DEVICE void load_statistics() {
    const int first = first_row_of_warp() + first_row(lane());
    const int first_block = first_statistics_block(args_.gradient, tile_.sequence, tile_.batch);
#pragma unroll
    for (int half = 0; half < kHalves; half++) {
      const int row = first + half * kRowsPerHalf;
      lse_[half] = INFINITY;
      delta_[half] = 0.f;
      if (row >= tile_.sequence.seq_len_q()) continue;
      const float *own =
          statistics_of(args_.gradient, first_block + row / kStatisticsRows, tile_.head) +
          statistics_place(row % kStatisticsRows);
      lse_[half] = load_statistic(own);
      delta_[half] = load_statistic(own + kStatisticsRows);
    }
  }

  // ---- products ----

  FLASHSMITH_DEVICE void step() {
    const ptx::shared_address K_before = Barriers::K(K_stage_.buffer).empty;
    issue_dQ();
    K_stage_.advance();
    issue_scores();
    ptx::wgmma_wait_group<2>();
    release(K_before);
    finish_scores();
  }

  FLASHSMITH_DEVICE void issue_scores() {
    ptx::mbarrier_wait_parity(Barriers::K(K_stage_.buffer).full, K_stage_.parity);
    Q_.issue_scores(S_, Memory::K + K_stage_.buffer * Traits::tile_bytes);
    ptx::mbarrier_wait_parity(Barriers::V(V_stage_.buffer).full, V_stage_.parity);
    dO_.issue_scores(dP_, Memory::V + V_stage_.buffer * Traits::tile_bytes);
  }

  FLASHSMITH_DEVICE void finish_scores() {
    ptx::wgmma_wait_group<1>();
    make_P();
    ptx::wgmma_wait_group<0>();
    release(Barriers::V(V_stage_.buffer).empty);
    V_stage_.advance();
    make_dS();
  }

  // Issues dQ += dS K of the block in K_stage_.
  FLASHSMITH_DEVICE void issue_dQ() {
    issue_key_gradient<Traits>(dQ_, dS_operand_, Memory::K + K_stage_.buffer * Traits::tile_bytes);
  }

  // ---- scores ----

  FLASHSMITH_DEVICE void make_P() {
    ptx::pin_registers(S_);
    const int row = first_row_of_warp() + first_row(lane()), key = block_ * Traits::B_c;
    if constexpr (Traits::Score::kChanges) change_scores(row, key);
#pragma unroll
    for (int i = 0; i < Traits::B_c / 2; i++) {
      S_[i] = fmaf(S_[i], args_.problem.softmax_scale_log2, -lse_[half_of(i)]);
    }
    if (key < tile_.unmasked_begin || key + Traits::B_c > tile_.unmasked_end) {
      mask<Traits>(S_, args_.problem, tile_.sequence, row, block_);
    }
#pragma unroll
    for (int i = 0; i < Traits::B_c / 2; i++) S_[i] = ptx::exp2_approx(S_[i]);
    mark_dropped<Traits, RowsAre::queries>(S_, args_.problem, dropout_, row,
                                           key + first_column(lane()));
    ptx::pin_registers(S_);
  }

  FLASHSMITH_DEVICE void change_scores(int row, int key) {
    float factor[Traits::B_c / 2];
    change_scores_and_factors<Traits, RowsAre::queries>(S_, factor, args_.problem, tile_.sequence,
                                                        {tile_.head, tile_.batch}, row,
                                                        key + first_column(lane()));
  }

  // Computes dS = P (dP - delta), with respect to the scaled score, as an operand.
  FLASHSMITH_DEVICE void make_dS() {
    ptx::pin_registers(dP_);
#pragma unroll
    for (int i = 0; i < Traits::B_c / 2; i++) {
      const float gradient = kept_gradient<Traits>(dP_[i], S_[i], args_.problem);
      dP_[i] = weight_of<Traits>(S_[i]) * (gradient - delta_[half_of(i)]);
    }
    pack_operand<value_t>(dS_operand_, dP_);
#pragma unroll
    for (int i = 0; i < Traits::B_c / kWgmmaK; i++) ptx::pin_registers(dS_operand_[i]);
  }
};

}  // namespace flashsmith::sm90
