// The forward kernels of the sm90 family as host and device see them: configuration (how),
// arguments and sizes of a launch.
#pragma once

#include "flashsmith/params.h"
#include "flashsmith/ptx/tensor_map.cuh"

namespace flashsmith {

// One point of the configuration space of the sm90 family. Same fields, in the same order, as the
// Python class of this name; ordered, so that it can be the key of a map. The fields are described
// in docs/knobs.md.
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

  constexpr auto operator<=>(const Sm90ForwardKernelConfig &) const = default;
};

// Where sequences have their keys, if K and V are pages: (n_pages, page_rows, n_heads_kv, d_head).
// A block of keys comes in boxes of box_rows, each of one page.
struct PagesArgs {
  const int32_t *__restrict__ block_table;  // of each sequence, the numbers of its pages
  int64_t block_table_stride;
  int n_pages, page_rows, box_rows;
};

// A kernel takes this as a `const __grid_constant__` parameter: bulk copies read the maps there.
//
// The maps have four dimensions: d_head, sequence, head, batch; or five: see rows.cuh. Their boxes
// are as wide as BoxedRows says, swizzled over that width, and kQueryBoxRows (Q),
// `map_KV_rows(cfg)` (K, V; of pages PagesArgs::box_rows) or kOutputBoxRows (O) rows high.
struct Sm90ForwardKernelArgs {
  ptx::TensorMap Q_map, K_map, V_map, O_map;
  ProblemArgs problem;
  // Rows from one entry of a tensor's batch to the next, for maps of five dimensions.
  int Q_batch_rows, K_batch_rows, V_batch_rows, O_batch_rows;
  Fp8Scale Q_scale, K_scale, V_scale;  // of what has 8 bits
  PagesArgs pages;
};

// Of maps of sequences with lengths of their own: a sequence ends at this row, and so many bytes
// less one row are the stride that takes it back. Their product is 2^64, which is no distance.
constexpr int kVarlenRows = 1 << 30;
constexpr uint64_t kVarlenShift = uint64_t{1} << 34;

typedef void (*sm90_forward_kernel_fn)(const Sm90ForwardKernelArgs);

constexpr int kQueryBoxRows = 64;   // of a warpgroup
constexpr int kOutputBoxRows = 16;  // of a warp
// Pages have a multiple of so many rows, as blocks of keys have: boxes of fewer would be too many.
constexpr int kPageRowMultiple = 16;

constexpr int threads_per_block(const Sm90ForwardKernelConfig &cfg) {
  return (cfg.n_warpgroups + 1) * kWarpgroupSize;
}

// Columns of O that are in shared memory at a time, if it leaves by bulk copies.
constexpr int staged_columns(const Sm90ForwardKernelConfig &cfg) {
  constexpr int kMax = 128;
  if (!cfg.tma_store) return 0;
  return cfg.d_head < kMax ? cfg.d_head : kMax;
}

// Rows in shared memory: box after box of a tensor map, each one swizzle wide, 128 bytes, or 64 or
// 32 where a row is not a multiple of that.
struct BoxedRows {
  int columns, n_boxes;
  int row_bytes, box_bytes, bytes;  // of a box's row, of a box, of all
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
// O's of a warp, on their way out.
constexpr BoxedRows O_rows(const Sm90ForwardKernelConfig &cfg) {
  return boxed_rows(kOutputBoxRows, cfg.d_head, kHalfBytes);
}

// V of 8 bits is transposed in shared memory, from buffers in which it arrives.
constexpr int transposed_stages(const Sm90ForwardKernelConfig &cfg) {
  return cfg.fp8_values ? cfg.n_stages : 0;
}

// Full and empty for the rows of Q of each warpgroup and for each buffer of K and V, full for the
// entries of the tile queue.
constexpr int n_barriers(const Sm90ForwardKernelConfig &cfg) {
  return 2 * cfg.n_warpgroups + 4 * cfg.n_stages + 2 * transposed_stages(cfg) + 2;
}

// Two entries of the tile queue, and for each buffer in which V arrives whether it is the end.
constexpr int word_bytes(const Sm90ForwardKernelConfig &cfg) {
  constexpr int kQueueBytes = 16, kEndBytes = 32;
  return kQueueBytes + (cfg.fp8_values ? kEndBytes : 0);
}

// Tiles of Q, K and V, columns of O, words and barriers.
constexpr int shared_memory_bytes(const Sm90ForwardKernelConfig &cfg) {
  constexpr int kBarrierBytes = 8;
  const int KV_bytes = cfg.n_stages * (K_tile(cfg).bytes + V_tile(cfg).bytes) +
                       transposed_stages(cfg) * V_tile(cfg).bytes;
  return Q_tile(cfg).bytes + KV_bytes + cfg.B_r * staged_columns(cfg) * kHalfBytes +
         word_bytes(cfg) + n_barriers(cfg) * kBarrierBytes;
}

constexpr int map_KV_rows(const Sm90ForwardKernelConfig &cfg) { return cfg.B_c / cfg.cluster_size; }

// Blocks of rows of Q: whole clusters of them, so that the last may lie beyond the sequence.
constexpr int Q_blocks(const Sm90ForwardKernelConfig &cfg, int seq_len_q) {
  const int cluster_rows = cfg.B_r * cfg.cluster_size;
  return (seq_len_q + cluster_rows - 1) / cluster_rows * cfg.cluster_size;
}

// Thread blocks of a launch on a GPU with so many SMs.
constexpr int grid_blocks(const Sm90ForwardKernelConfig &cfg, int n_tiles, int num_sms) {
  const int resident = num_sms / cfg.cluster_size * cfg.cluster_size;
  return cfg.persistent && resident < n_tiles ? resident : n_tiles;
}

}  // namespace flashsmith
