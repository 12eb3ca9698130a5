#include "host/args/backward.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr int64_t kFloatBytes = sizeof(float);

int64_t statistics_bytes(const ForwardTensors &tensors) {
  constexpr int64_t kStatistics = 2;  // LSE and delta of a row
  return all_statistics_blocks(tensors) * tensors.q().size(kHead) * kStatisticsRows * kStatistics *
         kFloatBytes;
}

template <typename T>
T *data_of(const TensorView *t) {
  return t ? static_cast<T *>(t->data_ptr()) : nullptr;
}

}  // namespace

int n_statistics_blocks(const ForwardTensors &tensors) {
  const int64_t rows = tensors.q().size(kSequence);
  return static_cast<int>((rows + kStatisticsRows - 1) / kStatisticsRows);
}

int64_t all_statistics_blocks(const ForwardTensors &tensors) {
  const int64_t entries = tensors.q().size(kBatch) * n_statistics_blocks(tensors);
  return tensors.cu_seqlens_q() ? entries + n_sequences(tensors) : entries;
}

int64_t gradient_workspace_bytes(const ForwardTensors &tensors, int d_sums) {
  return statistics_bytes(tensors) + all_statistics_blocks(tensors) * tensors.q().size(kHead) *
                                         kStatisticsRows * d_sums * kFloatBytes;
}

GradientArgs gradient_args(const BackwardTensors &tensors, const Numbers &numbers, int d_sums) {
  const ForwardTensors forward = tensors.forward();
  GradientArgs args{};
  args.dO = tensors.dO().data_ptr();
  args.dO_strides = strides_of(tensors.dO());
  args.dlse = data_of<const float>(tensors.dlse());
  args.dQ = tensors.dq().data_ptr();
  args.dK = tensors.dk().data_ptr();
  args.dV = tensors.dv().data_ptr();
  args.dQ_strides = strides_of(tensors.dq());
  args.dK_strides = strides_of(tensors.dk());
  args.dV_strides = strides_of(tensors.dv());
  args.dsinks = data_of<float>(tensors.dsinks());
  args.dbias = data_of<void>(tensors.dbias());
  auto *workspace = data_of<char>(tensors.workspace());
  args.statistics = reinterpret_cast<float *>(workspace);
  if (d_sums > 0) args.sums = reinterpret_cast<float *>(workspace + statistics_bytes(forward));
  args.all_statistics_blocks = static_cast<int>(all_statistics_blocks(forward));
  args.n_statistics_blocks = n_statistics_blocks(forward);
  args.packed_q = forward.cu_seqlens_q() != nullptr;
  args.clears_unused = tensors.are_new();
  args.softmax_scale = static_cast<float>(numbers.softmax_scale);
  return args;
}

}  // namespace flashsmith
