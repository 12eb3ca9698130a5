// The backward of a family and configuration: all kernels of one call.
#pragma once

#include "host/args/backward.h"
#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith {

class BackwardKernel : public Kernel {
 public:
  using Kernel::Kernel;

  // Throws ValueError for a layout that this family does not take, but others do.
  virtual void check_layout(const BackwardTensors &) const {}

  virtual Plan plan(const BackwardTensors &tensors, const ForwardProblem &problem,
                    int num_sms) const = 0;

  // Returns the arguments of all launches of the plan, for tensors that passed the checks.
  virtual KernelArguments arguments(const Plan &plan, const BackwardTensors &tensors,
                                    const ForwardProblem &problem,
                                    const Numbers &numbers) const = 0;

  // Returns plan; backward, which takes whether to measure before the other arguments; and bind.
  Operations operations() const override;
};

}  // namespace flashsmith
