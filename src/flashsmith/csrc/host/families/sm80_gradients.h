// The kernel arguments of the sm80 family's backwards.
#pragma once

#include "flashsmith/sm80/backward_arguments.cuh"
#include "host/backward_kernel.h"

namespace flashsmith {

// `d_sums`: see gradient_args.
inline BackwardKernelArgs sm80_gradient_arguments(const Variant &variant,
                                                  const BackwardTensors &tensors,
                                                  const ForwardProblem &problem,
                                                  const Numbers &numbers, int d_sums) {
  const ForwardTensors forward = tensors.forward();
  BackwardKernelArgs args{};
  args.Q = forward.q().data_ptr();
  args.K = forward.k().data_ptr();
  args.V = forward.v().data_ptr();
  args.Q_strides = strides_of(forward.q());
  args.K_strides = strides_of(forward.k());
  args.V_strides = strides_of(forward.v());
  args.problem = problem_args(variant, forward, problem, numbers);
  args.gradient = gradient_args(tensors, numbers, d_sums);
  return args;
}

}  // namespace flashsmith
