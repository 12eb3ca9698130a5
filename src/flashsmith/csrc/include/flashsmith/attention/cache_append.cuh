// Appends new keys and values to a KV cache, with rotary embedding: pairs of elements of a row are
// rotated by an angle that grows with the row's position.
//
// A thread moves one chunk of a row. The two elements of a pair are neighbours in it, or lie in two
// chunks, of which the thread reads both and writes one.
#pragma once

#include "flashsmith/attention/decode_sequence.cuh"
#include "flashsmith/attention/e4m3.cuh"
#include "flashsmith/ptx/dependent_launch.cuh"

namespace flashsmith {

// Grid: at least a thread for every chunk of new rows of K and V, and of Q if it is rotated. Block:
// kAppendThreads.
template <typename Traits>
class CacheAppend {
  using value_t = typename Traits::value_t;
  using cache_t = typename Traits::cache_t;
  using Elements = float[kAppendChunk];

  const AppendArgs &append_;
  const DecodeProblem &problem_;

  // A chunk of a row: its request, its row in the request, and its head.
  struct Row {
    int batch, row, head, chunk;
    bool there;
  };

 public:
  explicit FLASHSMITH_DEVICE CacheAppend(const AppendKernelArgs &args)
      : append_(args.append), problem_(args.problem) {}

  FLASHSMITH_DEVICE void run() const {
    const int64_t thread =
        static_cast<int64_t>(ptx::block_index_x()) * kAppendThreads + ptx::thread_index();
    const int heads_kv = problem_.n_heads_kv, K_chunks = problem_.d_qk / kAppendChunk;
    const int V_chunks = problem_.d_v / kAppendChunk;
    const int64_t rows = static_cast<int64_t>(problem_.batch) * append_.n_new * heads_kv;
    const int64_t V_first = rows * K_chunks, Q_first = V_first + rows * V_chunks;
    put(row_at(thread, append_.n_new, heads_kv, K_chunks, thread < V_first), append_.K,
        append_.rotary_dim);
    put(row_at(thread - V_first, append_.n_new, heads_kv, V_chunks,
               thread >= V_first && thread < Q_first),
        append_.V, 0);
    if (append_.Q != nullptr) turn_Q(thread - Q_first, K_chunks);
  }

 private:
  FLASHSMITH_DEVICE Row row_at(int64_t chunk, int n_rows, int n_heads, int row_chunks,
                               bool there) const {
    if (!there) return {};
    const int64_t row = chunk / row_chunks, query = row / n_heads;
    return {.batch = static_cast<int>(query / n_rows),
            .row = static_cast<int>(query % n_rows),
            .head = static_cast<int>(row % n_heads),
            .chunk = static_cast<int>(chunk % row_chunks),
            .there = true};
  }

  // Returns the number of rows that a request has in the cache already.
  FLASHSMITH_DEVICE int used(int batch) const {
    const int n = ptx::thread_load_global(problem_.varlen.seqused_k + batch);
    const int maximum = problem_.cache.rows;
    return n < 0 ? 0 : n < maximum ? n : maximum;
  }

  static FLASHSMITH_DEVICE int64_t offset(const TensorStrides &strides, const Row &row) {
    return row.batch * strides.batch + row.row * strides.seq + row.head * strides.head;
  }

  // Stores a new row behind those in use, if there is room.
  FLASHSMITH_DEVICE void put(const Row &row, const NewRows &of, int rotary_dim) const {
    const int position = row.there ? used(row.batch) + row.row : 0;
    CachePlace place{};
    bool has_room = false;  // without room there may be no angle for the position
    if (row.there && position < problem_.cache.rows) {
      const DecodeSequence sequence(problem_, row.batch);
      place = sequence.place_of_row(position);
      has_room = sequence.has(place);
    }
    const ptx::Chunk chunk = turned(static_cast<const value_t *>(of.rows) + offset(of.strides, row),
                                    row.chunk, position, rotary_dim, has_room);
    cache_t *destination = static_cast<cache_t *>(of.cache) + place.entry * of.cache_strides.batch +
                           place.row * of.cache_strides.seq + row.head * of.cache_strides.head +
                           row.chunk * kAppendChunk;
    if constexpr (Traits::fp8_cache) {
      const float *scale =
          has_room ? scale_of_row(of.scale, of.row_scales, row.batch, place, row.head) : nullptr;
      store_e4m3(has_room, destination, chunk, scale ? ptx::thread_load_global(scale) : 1.f);
    } else {
      ptx::store_global_16_if(has_room, destination, chunk);
    }
  }

  // Divides a rotated chunk of 16-bit elements by the scale, and rounds it once more. It divides
  // because a product with the reciprocal can round differently.
  static FLASHSMITH_DEVICE void store_e4m3(bool active, cache_t *destination,
                                           const ptx::Chunk &chunk, float scale) {
    Elements x;
    unpack(x, chunk);
    uint32_t words[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float *four = x + 4 * i;
      words[i] = pack_e4m3(four[0] / scale, four[1] / scale, four[2] / scale, four[3] / scale);
    }
    ptx::store_global_8_if(active, destination, words);
  }

  FLASHSMITH_DEVICE void turn_Q(int64_t thread, int row_chunks) const {
    const int64_t n =
        static_cast<int64_t>(problem_.batch) * problem_.seq_len_q * problem_.n_heads * row_chunks;
    const Row row =
        row_at(thread, problem_.seq_len_q, problem_.n_heads, row_chunks, thread >= 0 && thread < n);
    int position = row.there ? used(row.batch) + (append_.queries_in_a_row ? row.row : 0) : 0;
    position = position < append_.rotary_rows ? position : append_.rotary_rows - 1;
    const ptx::Chunk chunk =
        turned(static_cast<const value_t *>(append_.Q) + offset(append_.Q_strides, row), row.chunk,
               position, append_.rotary_dim, row.there);
    value_t *destination =
        static_cast<value_t *>(append_.Q_turned) + offset(append_.Q_turned_strides, row);
    ptx::store_global_16_if(row.there, destination + row.chunk * kAppendChunk, chunk);
  }

  // Returns a chunk of a row, rotated if it is among the first rotary_dim elements.
  FLASHSMITH_DEVICE ptx::Chunk turned(const value_t *row, int chunk, int position, int rotary_dim,
                                      bool there) const {
    const bool turns = there && chunk * kAppendChunk < rotary_dim;
    const int half = rotary_dim / 2 / kAppendChunk;  // in chunks
    const bool first = chunk < half;
    const int partner = first ? chunk + half : chunk - half;
    const ptx::Chunk own = ptx::load_global_16_or_zero(row + chunk * kAppendChunk, there);
    const ptx::Chunk other =
        ptx::load_global_16_or_zero(row + partner * kAppendChunk, turns && !append_.interleaved);
    if (!turns) return own;
    const int64_t angles = static_cast<int64_t>(position) * (append_.rotary_dim / 2);
    Elements x, result;
    unpack(x, own);
    if (append_.interleaved) {
#pragma unroll
      for (int i = 0; i < kAppendChunk; i += 2) {
        const int64_t angle = angles + (chunk * kAppendChunk + i) / 2;
        turn(result[i], result[i + 1], x[i], x[i + 1], angle);
      }
    } else {
      Elements y;
      unpack(y, other);
#pragma unroll
      for (int i = 0; i < kAppendChunk; i++) {
        const int64_t angle = angles + (first ? chunk : partner) * kAppendChunk + i;
        float low, high;
        turn(low, high, first ? x[i] : y[i], first ? y[i] : x[i], angle);
        result[i] = first ? low : high;
      }
    }
    return pack(result);
  }

  FLASHSMITH_DEVICE void turn(float &low, float &high, float x, float y, int64_t angle) const {
    const float cosine = element(append_.cos, angle), sine = element(append_.sin, angle);
    low = x * cosine - y * sine;
    high = x * sine + y * cosine;
  }

  static FLASHSMITH_DEVICE float element(const void *tensor, int64_t i) {
    return ptx::unpack<value_t>(ptx::thread_load_global(static_cast<const uint16_t *>(tensor) + i));
  }

  static FLASHSMITH_DEVICE void unpack(Elements &elements, const ptx::Chunk &chunk) {
#pragma unroll
    for (int i = 0; i < kAppendChunk; i++) {
      elements[i] = ptx::unpack<value_t>(static_cast<uint16_t>(chunk.word[i / 2] >> 16 * (i % 2)));
    }
  }

  static FLASHSMITH_DEVICE ptx::Chunk pack(const Elements &elements) {
    ptx::Chunk chunk;
#pragma unroll
    for (int i = 0; i < kAppendChunk / 2; i++) {
      chunk.word[i] = ptx::pack<value_t>(elements[2 * i], elements[2 * i + 1]);
    }
    return chunk;
  }
};

template <typename Traits>
__global__ void __launch_bounds__(kAppendThreads)
    cache_append_kernel(const __grid_constant__ AppendKernelArgs args) {
  ptx::let_next_launch_begin();
  CacheAppend<Traits>(args).run();
}

}  // namespace flashsmith
