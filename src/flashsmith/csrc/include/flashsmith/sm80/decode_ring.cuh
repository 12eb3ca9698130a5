// Copies a team's keys and values from the cache into its ring of stages.
#pragma once

#include "flashsmith/attention/work_tiles.cuh"
#include "flashsmith/ptx/cp_async.cuh"
#include "flashsmith/ptx/shuffle.cuh"
#include "flashsmith/sm80/per_token_scale.cuh"
#include "flashsmith/sm80/smem_tile.cuh"

namespace flashsmith::sm80 {

// Copies a warp's share of slices (B_c keys and values), one after the other. Keys that no query of
// the request sees become zeros, because memory there may hold anything.
template <typename Traits>
class KVRing {
  using cache_t = typename Traits::cache_t;
  using T = SmemTile<typename Traits::CacheTile>;
  using Walk = ChunkWalk<typename Traits::CacheTile, kWarpSize>;
  static constexpr int kShare = Traits::B_c / Traits::row_warps, kPasses = kShare / Walk::kRows;
  static_assert(kShare * Traits::row_warps == Traits::B_c && kShare % Walk::kRows == 0,
                "every pass of a warp copies whole rows");

  const DecodeKernelArgs &args_;
  const typename Traits::Sequence &sequence_;
  const cache_t *K_, *V_;  // of the head of the cache
  const int batch_, head_;
  const int first_, end_;  // range of the keys that exist and are seen
  CachePlace next_;        // place of this lane's key in the next slice to copy

 public:
  // `key` is the first key of the first slice.
  FLASHSMITH_DEVICE KVRing(const DecodeKernelArgs &args, const typename Traits::Sequence &sequence,
                           const KeySplit &split, int end, int key)
      : args_(args),
        sequence_(sequence),
        K_(static_cast<const cache_t *>(args.K) + split.head * args.K_strides.head),
        V_(static_cast<const cache_t *>(args.V) + split.head * args.V_strides.head),
        batch_(split.batch),
        head_(split.head),
        first_(Traits::Mask::first(args.problem, sequence, 0)),
        end_(end) {
    look_up(key);
  }

  // Copies the slice that was looked up to a stage, and looks up the slice that begins with `key`.
  FLASHSMITH_DEVICE void copy(ptx::shared_address stage, int key) {
    const CachePlace place = next_;
    const bool there = sequence_.has(place);
    const int64_t K_offset = there ? offset(args_.K_strides, place) : -1;
    const int64_t V_offset = there ? offset(args_.V_strides, place) : -1;
    look_up(key);
    const Walk walk(ptx::thread_index() % kWarpSize);
#pragma unroll
    for (int pass = 0; pass < kPasses; pass++) {
      const int row = walk.row + pass * Walk::kRows;
      copy_row(stage, ptx::shuffle_from(K_offset, row), ptx::shuffle_from(V_offset, row),
               share() + row, walk.chunk);
    }
    if constexpr (Traits::per_token_scale) copy_scales(stage, place, there);
    ptx::cp_async_commit_group();
  }

 private:
  // Returns the first row of a slice that this warp copies.
  static FLASHSMITH_DEVICE int share() {
    return ptx::thread_index() / kWarpSize % Traits::row_warps * kShare;
  }

  FLASHSMITH_DEVICE void look_up(int slice_key) {
    const int lane = ptx::thread_index() % kWarpSize, key = slice_key + share() + lane;
    next_ = {-1, 0};
    if (lane < kShare && key >= first_ && key < end_) next_ = sequence_.place(key);
  }

  // Copies the scales of this lane's key, which is at `place`; zeros if there is none.
  FLASHSMITH_DEVICE void copy_scales(ptx::shared_address stage, const CachePlace &place,
                                     bool there) const {
    const int to = ColumnScales<kShare>::place(ptx::thread_index() % kWarpSize) * sizeof(float);
    copy_scale(stage + Traits::K_scales_offset + to, args_.K_scale, args_.K_row_scales, place,
               there);
    copy_scale(stage + Traits::V_scales_offset + to, args_.V_scale, args_.V_row_scales, place,
               there);
  }

  FLASHSMITH_DEVICE void copy_scale(ptx::shared_address to, const Fp8Scale &scale,
                                    const RowScales &rows, const CachePlace &place,
                                    bool there) const {
    if (scale.scale == nullptr) {
      ptx::store_shared_4(to, ptx::float_bits(1.f));
    } else {
      ptx::cp_async_4_or_zero(to, scale_of_row(scale, rows, batch_, place, head_), there);
    }
  }

  // Returns the offset of the row of this lane's key, in elements from the head's first. It is
  // computed once for each key, and all lanes that copy the key get it; -1 if there is no row.
  static FLASHSMITH_DEVICE int64_t offset(const TensorStrides &strides, const CachePlace &place) {
    return place.entry * strides.batch + place.row * strides.seq;
  }

  FLASHSMITH_DEVICE void copy_row(ptx::shared_address stage, int64_t K_offset, int64_t V_offset,
                                  int row, int first_chunk) const {
    const bool there = K_offset >= 0;
#pragma unroll
    for (int panel = 0; panel < Walk::kPanels; panel++) {
      const int chunk = first_chunk + panel * Walk::kPanelChunks,
                element = chunk * Traits::cache_chunk;
      const ptx::shared_address to = stage + T::offset(row, chunk);
      ptx::cp_async_16_or_zero(to, K_ + K_offset + element,
                               there && has(chunk, args_.problem.d_qk));
      ptx::cp_async_16_or_zero(to + Traits::V_offset, V_ + V_offset + element,
                               there && has(chunk, args_.problem.d_v));
    }
  }

  static FLASHSMITH_DEVICE bool has(int chunk, int row_elements) {
    return !Traits::padded || chunk * Traits::cache_chunk < row_elements;
  }
};

}  // namespace flashsmith::sm80
