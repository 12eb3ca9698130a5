// The common part of the sm90 family's backwards: the layouts that bulk copies take, and the kernel
// arguments.
#pragma once

#include "flashsmith/sm90/backward_arguments.cuh"
#include "host/backward_kernel.h"
#include "host/tensor_map.h"
#include "host/tiles_together.h"

namespace flashsmith {

// Throws ValueError for a tensor that copies cannot step through.
inline void check_gradient_layout(const BackwardTensors &tensors, bool varlen) {
  tensors.all().for_each([varlen](const Argument &argument, const tvm::ffi::TensorView &t) {
    if (!has_rows(argument) || argument.use != Use::read) return;
    check_map_strides(argument, t);
    if (varlen) check_map_batch_stride(argument, t);
  });
}

// `key_rows`: rows of a box of K or V. `d_sums`: see gradient_args.
template <typename Config>
Sm90BackwardKernelArgs sm90_gradient_arguments(const Config &config, const Variant &variant,
                                               const BackwardTensors &tensors,
                                               const ForwardProblem &problem,
                                               const Numbers &numbers, int key_rows, int d_sums) {
  const ForwardTensors forward = tensors.forward();
  const auto map = [&](const tvm::ffi::TensorView &t, int rows) {
    const Box box{map_columns(config), rows, map_swizzle(config)};
    return make_tensor_map(t, config.dtype, box, variant.varlen);
  };
  Sm90BackwardKernelArgs args{};
  args.Q_map = map(forward.q(), kStatisticsRows);
  args.dO_map = map(tensors.dO(), kStatisticsRows);
  args.K_map = map(forward.k(), key_rows);
  args.V_map = map(forward.v(), key_rows);
  args.problem = problem_args(variant, forward, problem, numbers);
  args.gradient = gradient_args(tensors, numbers, d_sums);
  if (variant.varlen) {
    args.Q_batch_rows = map_batch_rows(forward.q());
    args.dO_batch_rows = map_batch_rows(tensors.dO());
    args.K_batch_rows = map_batch_rows(forward.k());
    args.V_batch_rows = map_batch_rows(forward.v());
  }
  return args;
}

}  // namespace flashsmith
