// A kernel of some family, as checks and launches see it.
#pragma once

#include "host/args/forward.h"
#include "host/named_kernel.h"
#include "host/plan.h"

namespace flashsmith {

// What a configuration says of the problems that it takes.
struct TileSizes {
  ScalarType dtype;
  int d_head, B_r, B_c;
};

class ForwardKernel {
 public:
  template <typename Named>
  ForwardKernel(const Named &kernel, const FamilyGpus &gpus)
      : name(kernel.name),
        gpus(gpus),
        variant(kernel.variant),
        tiles{kernel.config.dtype, kernel.config.d_head, kernel.config.B_r, kernel.config.B_c} {}
  virtual ~ForwardKernel() = default;

  const char *const name;  // short form and variant
  const FamilyGpus gpus;
  const Variant variant;
  const TileSizes tiles;

  // Throws ValueError for a layout that other families take, but not this one.
  virtual void check_layout(const ForwardTensors &) const {}

  virtual Plan plan(const ForwardProblem &problem, int multiprocessors) const = 0;

  // Of all launches of the plan, for tensors that passed the checks.
  virtual KernelArguments arguments(const ForwardTensors &tensors, const ForwardProblem &problem,
                                    const ForwardNumbers &numbers) const = 0;
};

}  // namespace flashsmith
