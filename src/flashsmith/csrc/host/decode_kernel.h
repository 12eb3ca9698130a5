// The decode kernels of some family and configuration.
#pragma once

#include "host/args/append.h"
#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith {

class DecodeKernel : public Kernel {
 public:
  template <typename Named>
  DecodeKernel(const Named &kernel, const FamilyGpus &gpus)
      : Kernel(kernel, gpus),
        cache(kernel.config.fp8_cache ? ScalarType::Float8_e4m3fn : kernel.config.dtype),
        token_scales(kernel.config.token_scales) {}

  const ScalarType cache;   // the type of K and V
  const bool token_scales;  // each row of them may have its own

  ScalarType type_of(Element element) const override {
    return element == Element::of_cache ? cache : tiles.dtype;
  }

  virtual Plan plan(const ForwardProblem &problem, const DecodeNumbers &own,
                    int multiprocessors) const = 0;

  // Of all launches of the plan, for tensors that passed the checks.
  virtual KernelArguments arguments(const DecodeTensors &tensors, const ForwardProblem &problem,
                                    const Numbers &numbers, const DecodeNumbers &own,
                                    const Plan &plan) const = 0;

  // Of new keys and values.
  virtual Plan append_plan(const AppendTensors &tensors) const = 0;

  // plan, decode, which takes another argument before them: whether to measure; repeatable. All
  // take DecodeNumbers before the tensors. And append, which takes AppendNumbers.
  Operations operations() const override;
};

}  // namespace flashsmith
