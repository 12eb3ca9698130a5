#include "host/args/forward.h"

#include <numbers>

namespace flashsmith {

using tvm::ffi::TensorView;

ForwardProblem problem_of(const ForwardTensors &tensors) {
  const auto size = [](const TensorView &t, int dimension) {
    return static_cast<int>(t.size(dimension));
  };
  return {.batch = size(tensors.q(), kBatch),
          .n_heads = size(tensors.q(), kHead),
          .n_heads_kv = size(tensors.k(), kHead),
          .seq_len_q = size(tensors.q(), kSequence),
          .seq_len_k = size(tensors.k(), kSequence)};
}

ProblemArgs problem_args(const ForwardTensors &tensors, const ForwardProblem &problem,
                         const ForwardNumbers &numbers) {
  ProblemArgs args{};
  args.O = tensors.o().data_ptr();
  args.O_strides = strides_of(tensors.o());
  if (tensors.lse()) args.lse = static_cast<float *>(tensors.lse()->data_ptr());
  if (tensors.workspace()) args.queue = static_cast<uint32_t *>(tensors.workspace()->data_ptr());
  args.batch = problem.batch;
  args.n_heads = problem.n_heads;
  args.n_heads_kv = problem.n_heads_kv;
  args.seq_len_q = problem.seq_len_q;
  args.seq_len_k = problem.seq_len_k;
  // The softmax is computed in base 2.
  args.softmax_scale_log2 = static_cast<float>(numbers.softmax_scale * std::numbers::log2e);
  return args;
}

TensorStrides strides_of(const TensorView &t) {
  return {t.stride(kBatch), t.stride(kSequence), t.stride(kHead)};
}

}  // namespace flashsmith
