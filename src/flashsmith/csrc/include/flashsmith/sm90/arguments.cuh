// The sm90 forward as host and device see it: configuration, kernel arguments and launch sizes.
#pragma once

#include "flashsmith/params.h"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith {

// One point of the configuration space of the sm90 family. The fields, in this order, are those of
// the Python class of this name, and are described in docs/knobs.md. The struct is ordered, so that
// it can be the key of a map.
struct Sm90ForwardKernelConfig {
  ScalarType dtype;
  int d_head;
  int B_r;
  int B_c;
  int n_warpgroups;
  int n_stages;
  int Q_steps_in_registers;
  bool overlap_softmax;
  bool ping_pong;
  bool persistent;
  bool dynamic_queue;
  bool overlap_tiles;
  int heads_per_group;
  int cluster_size;
  int lazy_rescale_log2;
  bool stale_maximum;
  int fma_exponentials;
  bool tma_store;
  bool fp8_scores;
  bool fp8_values;
  bool two_level;
  bool ping_pong_until_exp;
  bool skip_unseen;
  bool packed_heads;

  constexpr auto operator<=>(const Sm90ForwardKernelConfig &) const = default;
};

// Paged K and V: (n_pages, page_rows, n_heads_kv, d_head). A block of keys is loaded in boxes of
// box_rows rows, each within one page.
struct PagesArgs {
  const int32_t *__restrict__ block_table;  // page table: the pages of each sequence
  int64_t block_table_stride;
  int n_pages, page_rows, box_rows;
};

// The query heads that share a head of K and V, for kernels that pack them into the rows of a tile:
// row r of a warpgroup is of query r / size and head r % size (packed_heads.cuh).
struct HeadGroup {
  int size, queries;  // heads; queries of a warpgroup
  int reciprocal;     // r * reciprocal / 2^16 is r / size for the rows of a warpgroup
};

// A kernel takes this as a `const __grid_constant__` parameter: bulk copies read the maps there.
//
// The maps have four dimensions: d_head, sequence, head, batch; or five: see rows.cuh. Their boxes
// have the width and swizzle of BoxedRows, and a height of kQueryBoxRows (Q), `map_KV_rows(cfg)`
// (K, V; with pages PagesArgs::box_rows) or kOutputBoxRows (O). With packed heads the maps of Q and
// O have the head before the sequence, and boxes of HeadGroup::size heads of HeadGroup::queries
// queries.
struct Sm90ForwardKernelArgs {
  ptx::TensorMap Q_map, K_map, V_map, O_map;
  ProblemArgs problem;
  // The number of rows between batch entries of a tensor, for maps of five dimensions.
  int Q_batch_rows, K_batch_rows, V_batch_rows, O_batch_rows;
  Fp8Scale Q_scale, K_scale, V_scale;  // of FP8 tensors
  PagesArgs pages;
  HeadGroup group;
};

// Constants of the maps of varlen sequences (rows.cuh): a sequence ends at row kVarlenRows, and
// kVarlenShift minus one row is the stride in bytes that leads back. Their product is 2^64, which
// is no distance.
constexpr int kVarlenRows = 1 << 30;
constexpr uint64_t kVarlenShift = uint64_t{1} << 34;

typedef void (*sm90_forward_kernel_fn)(const Sm90ForwardKernelArgs);

constexpr int kQueryBoxRows = 64;               // rows of a warpgroup
constexpr int kOutputBoxRows = 16;              // rows of a warp
constexpr int kMaxPackedHeads = kQueryBoxRows;  // a warpgroup has a query of all heads
// Pages have a multiple of this number of rows, as blocks of keys have: smaller boxes would be too
// many.
constexpr int kPageRowMultiple = 16;

constexpr int threads_per_block(const Sm90ForwardKernelConfig &cfg) {
  return (cfg.n_warpgroups + 1) * kWarpgroupSize;
}

// Returns the columns of O that are in shared memory at a time, if O is stored by bulk copies.
constexpr int staged_columns(const Sm90ForwardKernelConfig &cfg) {
  constexpr int kMax = 128;
  if (!cfg.tma_store) return 0;
  return cfg.d_head < kMax ? cfg.d_head : kMax;
}

// The layout of rows in shared memory: one box of a tensor map after the other, each as wide as its
// swizzle, which is 128 bytes, or 64 or 32 if the bytes of a row are not a multiple of that.
struct BoxedRows {
  int columns, n_boxes;
  int row_bytes, box_bytes, bytes;  // of a row of a box, of a box, of all boxes
  ptx::Swizzle swizzle;
};

constexpr BoxedRows boxed_rows(int rows, int elements, int element_bytes) {
  const int bytes = elements * element_bytes;
  const int width = bytes % 128 == 0 ? 128 : bytes % 64 == 0 ? 64 : 32;
  return {.columns = width / element_bytes,
          .n_boxes = bytes / width,
          .row_bytes = width,
          .box_bytes = rows * width,
          .bytes = rows * bytes,
          .swizzle = width == 128  ? ptx::Swizzle::bytes_128
                     : width == 64 ? ptx::Swizzle::bytes_64
                                   : ptx::Swizzle::bytes_32};
}

constexpr int kFp8Bytes = 1, kHalfBytes = 2;  // of an element

constexpr BoxedRows Q_tile(const Sm90ForwardKernelConfig &cfg) {
  return boxed_rows(cfg.B_r, cfg.d_head, cfg.fp8_scores ? kFp8Bytes : kHalfBytes);
}
constexpr BoxedRows K_tile(const Sm90ForwardKernelConfig &cfg) {
  return boxed_rows(cfg.B_c, cfg.d_head, cfg.fp8_scores ? kFp8Bytes : kHalfBytes);
}
constexpr BoxedRows V_tile(const Sm90ForwardKernelConfig &cfg) {
  return boxed_rows(cfg.B_c, cfg.d_head, cfg.fp8_values ? kFp8Bytes : kHalfBytes);
}
// Returns the layout of the rows of O that are stored together: those of a warp or, as a query's
// heads may be in two warps, those of a warpgroup.
constexpr BoxedRows O_rows(const Sm90ForwardKernelConfig &cfg) {
  return boxed_rows(cfg.packed_heads ? kQueryBoxRows : kOutputBoxRows, cfg.d_head, kHalfBytes);
}

// Returns the number of buffers in which FP8 V arrives, to be transposed from there.
constexpr int transposed_stages(const Sm90ForwardKernelConfig &cfg) {
  return cfg.fp8_values ? cfg.n_stages : 0;
}

// Returns the number of barriers: full and empty for the rows of Q of each warpgroup and for each
// buffer of K and V, and full for the entries of the tile queue.
constexpr int n_barriers(const Sm90ForwardKernelConfig &cfg) {
  return 2 * cfg.n_warpgroups + 4 * cfg.n_stages + 2 * transposed_stages(cfg) + 2;
}

// Returns the bytes of two entries of the tile queue, and of a word for each buffer in which V
// arrives that says whether it is the end.
constexpr int word_bytes(const Sm90ForwardKernelConfig &cfg) {
  constexpr int kQueueBytes = 16, kEndBytes = 32;
  return kQueueBytes + (cfg.fp8_values ? kEndBytes : 0);
}

// Shared memory holds tiles of Q, K and V, columns of O, words and barriers.
constexpr int shared_memory_bytes(const Sm90ForwardKernelConfig &cfg) {
  constexpr int kBarrierBytes = 8;
  const int KV_bytes = cfg.n_stages * (K_tile(cfg).bytes + V_tile(cfg).bytes) +
                       transposed_stages(cfg) * V_tile(cfg).bytes;
  return Q_tile(cfg).bytes + KV_bytes + cfg.B_r * staged_columns(cfg) * kHalfBytes +
         word_bytes(cfg) + n_barriers(cfg) * kBarrierBytes;
}

constexpr int map_KV_rows(const Sm90ForwardKernelConfig &cfg) { return cfg.B_c / cfg.cluster_size; }

constexpr HeadGroup head_group(int size) {
  return {.size = size, .queries = kQueryBoxRows / size, .reciprocal = ((1 << 16) - 1) / size + 1};
}

// Returns the number of queries of a tile, if `group_size` heads share a head of K and V.
constexpr int tile_queries(const Sm90ForwardKernelConfig &cfg, int group_size) {
  return cfg.packed_heads ? cfg.n_warpgroups * head_group(group_size).queries : cfg.B_r;
}

// Returns the number of blocks of rows of Q, in whole clusters, so that the last may lie beyond the
// sequence.
constexpr int Q_blocks(const Sm90ForwardKernelConfig &cfg, int seq_len_q, int group_size) {
  const int cluster_rows = tile_queries(cfg, group_size) * cfg.cluster_size;
  return (seq_len_q + cluster_rows - 1) / cluster_rows * cfg.cluster_size;
}

// Returns the number of thread blocks of a launch on a GPU with this number of SMs.
constexpr int grid_blocks(const Sm90ForwardKernelConfig &cfg, int n_tiles, int num_sms) {
  const int resident = num_sms / cfg.cluster_size * cfg.cluster_size;
  return cfg.persistent && resident < n_tiles ? resident : n_tiles;
}

}  // namespace flashsmith
