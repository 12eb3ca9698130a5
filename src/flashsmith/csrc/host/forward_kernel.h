// A forward kernel of some family.
#pragma once

#include "host/args/forward.h"
#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith {

class ForwardKernel : public Kernel {
 public:
  using Kernel::Kernel;

  // Throws ValueError for a layout that other families take, but not this one.
  virtual void check_layout(const ForwardTensors &) const {}

  virtual Plan plan(const ForwardProblem &problem, int num_sms) const = 0;

  // Of all launches of the plan, for tensors that passed the checks.
  virtual KernelArguments arguments(const ForwardTensors &tensors, const ForwardProblem &problem,
                                    const Numbers &numbers) const = 0;

  // plan, forward, which takes another argument before them: whether to measure; bind.
  Operations operations() const override;
};

}  // namespace flashsmith
