#include "host/arguments.h"

#include <numbers>

#include "host/layout.h"
#include "host/tensor_map.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

TensorStrides strides_of(const TensorView &t) {
  return {t.stride(kBatch), t.stride(kSequence), t.stride(kHead)};
}

int size(const TensorView &t, int dimension) { return static_cast<int>(t.size(dimension)); }

// The softmax is computed in base 2.
float scale_log2(double softmax_scale) {
  return static_cast<float>(softmax_scale * std::numbers::log2e);
}

int n_Q_blocks(const FlashForwardKernelConfig &config, const TensorView &q) {
  return (size(q, kSequence) + config.B_r - 1) / config.B_r;
}

int n_Q_blocks(const Sm90ForwardKernelConfig &config, const TensorView &q) {
  return Q_blocks(config, size(q, kSequence));
}

}  // namespace

ForwardKernelArgs forward_args(const FlashForwardKernelConfig &config,
                               const ForwardTensors &tensors, double softmax_scale) {
  ForwardKernelArgs args{};
  args.Q = tensors.q.data_ptr();
  args.K = tensors.k.data_ptr();
  args.V = tensors.v.data_ptr();
  args.O = tensors.o.data_ptr();
  args.Q_strides = strides_of(tensors.q);
  args.K_strides = strides_of(tensors.k);
  args.V_strides = strides_of(tensors.v);
  args.O_strides = strides_of(tensors.o);
  args.seq_len = size(tensors.q, kSequence);
  args.n_heads = size(tensors.q, kHead);
  args.n_Q_blocks = n_Q_blocks(config, tensors.q);
  args.n_KV_blocks = args.seq_len / config.B_c;
  args.softmax_scale_log2 = scale_log2(softmax_scale);
  return args;
}

Sm90ForwardKernelArgs forward_args(const Sm90ForwardKernelConfig &config,
                                   const ForwardTensors &tensors, double softmax_scale) {
  const auto map = [&](const TensorView &t, int box_rows) {
    return make_tensor_map(t, config.dtype, map_columns(config), box_rows, map_swizzle(config));
  };
  Sm90ForwardKernelArgs args{};
  args.Q_map = map(tensors.q, kQueryBoxRows);
  args.K_map = map(tensors.k, map_KV_rows(config));
  args.V_map = map(tensors.v, map_KV_rows(config));
  if (config.tma_store) args.O_map = map(tensors.o, kOutputBoxRows);
  args.O = tensors.o.data_ptr();
  args.O_strides = strides_of(tensors.o);
  if (tensors.lse) args.lse = static_cast<float *>(tensors.lse->data_ptr());
  if (tensors.workspace) args.queue = static_cast<uint32_t *>(tensors.workspace->data_ptr());
  args.batch = size(tensors.q, kBatch);
  args.n_heads = size(tensors.q, kHead);
  args.n_heads_kv = size(tensors.k, kHead);
  args.seq_len_q = size(tensors.q, kSequence);
  args.seq_len_k = size(tensors.k, kSequence);
  args.n_Q_blocks = n_Q_blocks(config, tensors.q);
  args.softmax_scale_log2 = scale_log2(softmax_scale);
  return args;
}

Grid forward_grid(const FlashForwardKernelConfig &config, const ForwardTensors &tensors, int) {
  const auto size_of = [&](int dimension) {
    return static_cast<unsigned>(tensors.q.size(dimension));
  };
  return {static_cast<unsigned>(n_Q_blocks(config, tensors.q)), size_of(kHead), size_of(kBatch)};
}

Grid forward_grid(const Sm90ForwardKernelConfig &config, const ForwardTensors &tensors,
                  int multiprocessors) {
  const TensorView &q = tensors.q;
  const int n_tiles = n_Q_blocks(config, q) * size(q, kHead) * size(q, kBatch);
  return {static_cast<unsigned>(grid_blocks(config, n_tiles, multiprocessors)), 1, 1};
}

}  // namespace flashsmith
