// The decode kernels of some family and configuration.
#pragma once

#include "host/args/append.h"
#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith {

// How blocks of a family's kernels visit keys.
struct DecodeBlocks {
  int step_keys;  // that all teams of a block visit side by side
  int blocks_per_SM;
  int min_steps;  // of a split of a work tile
  int arrivals;   // counters of a work tile
};

class DecodeKernel : public Kernel {
  DecodeBlocks blocks_;
  Launch decode_;  // all but its grid
  const void *combine_, *append_;

  int64_t n_tiles(const ForwardProblem &problem) const { return decode_tiles(problem, tiles.B_r); }

  // Of each work tile, KV steps if the cache is full.
  int64_t max_steps(const ForwardProblem &problem) const;

  // By which all SMs are busy, with several blocks each if these are long.
  int64_t even_splits(const ForwardProblem &problem, int num_sms) const;

  // Whether blocks are sure to have splits of equal size, or so short ones that nothing is gained.
  bool is_even(const ForwardProblem &problem, int64_t splits) const;

  // Whether a kernel of its own combines what splits of work tiles have stored, or the last one.
  virtual bool has_combine_kernel(const ForwardProblem &problem, int64_t splits) const = 0;

  // Adds that kernel's launch, and what it is told, to a plan.
  void add_combine(DecodePlan &plan, const ForwardProblem &problem, int64_t places,
                   int64_t splits) const;

  // Blocks that are resident at a time, or fewer: as many as there are KV steps. Where an
  // SM has one split it has one block: of two on some the other would be idle.
  int64_t n_blocks(const ForwardProblem &problem, const DecodeNumbers &own, const DecodePlan &plan,
                   int num_sms) const;

 public:
  template <typename Named>
  DecodeKernel(const Named &kernel, const FamilyGpus &gpus, const DecodeBlocks &blocks,
               const char *name, decltype(Launch::call) call)
      : Kernel(kernel, gpus),
        blocks_(blocks),
        decode_{.kernel = name,
                .function = reinterpret_cast<const void *>(kernel.function.decode),
                .call = call,
                .grid = {},
                .cluster = 1,
                .threads = static_cast<unsigned>(threads_per_block(kernel.config)),
                .shared_memory_bytes = shared_memory_bytes(kernel.config),
                .overlaps = true},
        combine_(reinterpret_cast<const void *>(kernel.function.combine)),
        append_(reinterpret_cast<const void *>(kernel.function.append)),
        cache(kernel.config.fp8_cache ? ScalarType::Float8_e4m3fn : kernel.config.dtype),
        per_token_scale(kernel.config.per_token_scale) {}

  const ScalarType cache;      // the type of K and V
  const bool per_token_scale;  // each row of them may have its own

  ScalarType type_of(Element element) const override {
    return element == Element::of_cache ? cache : tiles.dtype;
  }

  // Throws ValueError for a cache that the kernels cannot read as it lies.
  virtual void check_layout(const DecodeTensors &) const {}

  DecodePlan plan(const ForwardProblem &problem, const DecodeNumbers &own, int num_sms) const;

  // Of kPartialChunk numbers, in the sums of a work tile.
  int64_t n_chunks(const ForwardProblem &problem) const;

  // Of all launches of the plan, for tensors that passed the checks.
  virtual KernelArguments arguments(const DecodeTensors &tensors, const ForwardProblem &problem,
                                    const Numbers &numbers, const DecodeNumbers &own,
                                    const DecodePlan &plan) const = 0;

  // Of new keys and values.
  Plan append_plan(const AppendTensors &tensors) const;

  // plan and decode, which take DecodeNumbers before the tensors, decode also whether to measure;
  // append, which takes AppendNumbers; and bind.
  Operations operations() const override;
};

}  // namespace flashsmith
