// The decode kernels of a family and configuration.
#pragma once

#include "host/args/append.h"
#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith {

// The way in which blocks of a family's kernels visit keys.
struct DecodeBlocks {
  int step_keys;  // keys that all teams of a block visit side by side
  int blocks_per_SM;
  int min_steps;   // min KV steps of a split
  int arrivals;    // counters of a work tile
  bool in_rounds;  // whether equal splits may take several rounds of all SMs
  // Whether a block takes one equal split, and the GPU then gives its place to the next block; else
  // resident blocks take one split after the other.
  bool one_split_each;
  int time_alone;        // of a block alone on an SM, as SplitTimes have it
  int steps_even;        // max KV steps of equal splits to which stream-K is not worth its cost
  int splits_of_thread;  // max splits of a chunk that one thread combines; more are shared
};

// The time of a split on an SM that has all the memory bandwidth it can have while others are idle,
// as SplitTimes have it.
constexpr int kShortestTime = 13;

class DecodeKernel : public Kernel {
  DecodeBlocks blocks_;
  Launch decode_;                      // without its grid
  KernelFunction waiting_, stream_k_;  // of kernels whose splits wait for each other
  KernelFunction combine_, append_;

  int64_t n_tiles(const ForwardProblem &problem) const { return decode_tiles(problem, tiles.B_r); }

  // Returns the KV steps of each work tile if the cache is full.
  int64_t max_steps(const ForwardProblem &problem) const;

  // Returns whether equal splits are best, in as many rounds of all SMs as it takes: the requests
  // have equal lengths, and several work tiles of a head read the same keys. Stream-K would read
  // them at different times, each time from memory.
  bool takes_rounds(const ForwardProblem &problem, bool equal_lengths) const;

  // Returns the number of splits of a work tile by which SMs take the fewest KV steps in rounds.
  int64_t splits_in_rounds(const ForwardProblem &problem, int num_sms) const;

  // Returns the number of splits of a work tile that keeps all SMs busy, with several blocks each
  // if splits are long.
  int64_t even_splits(const ForwardProblem &problem, int num_sms) const;

  // Returns the number of splits of a work tile by which all are read soonest, if their blocks run
  // at the same time.
  int64_t splits_of_one_round(const ForwardProblem &problem, int num_sms) const;

  // Returns the time in which all SMs read as many equal splits, or work ranges, in sixteenths of
  // one.
  int64_t time_of_splits(int64_t all_splits, int num_sms) const;

  // Returns the times by which the kernel chooses between these splits and stream-K.
  SplitTimes times(int64_t all_splits, int64_t ranges, int num_sms) const;

  // Returns whether splits are equal anyway, or so short that stream-K would gain nothing.
  bool is_even(const ForwardProblem &problem, int64_t splits) const;

  // Returns whether equal splits take no longer than stream-K, or hardly, if all requests have the
  // max number of rows. Otherwise the kernel reads the lengths and decides.
  bool are_even_splits_shorter(const ForwardProblem &problem, int64_t splits, int num_sms) const;

  // Returns the number of blocks that run at the same time.
  int64_t resident_blocks(int num_sms) const { return int64_t{num_sms} * blocks_.blocks_per_SM; }

  // Returns whether a separate kernel combines the partial results of work tiles, instead of the
  // last split.
  virtual bool has_combine_kernel(const ForwardProblem &problem, int64_t splits) const = 0;

  // Returns the max number of equal splits of a work tile that run at the same time, wait for each
  // other, and combine a share of their partial results each, which has the bits of the separate
  // kernel. If it is not 0, those of stream-K do so whatever their number.
  virtual int64_t max_waiting_splits() const { return 0; }

  // Returns whether the splits of a plan wait for each other.
  bool do_splits_wait(const DecodePlan &plan, const ForwardProblem &problem, int num_sms) const;

  // Returns how often a split of one of these blocks looks whether the others have arrived: for 30
  // us, and four times as long as a block takes to read its keys in the mean. Blocks that have not
  // ended by then have probably not begun. If a split gives up, one block combines everything, 20
  // us later.
  int polls(const ForwardProblem &problem, int64_t blocks) const;

  // Returns the number of threads that share the splits of a chunk of a row.
  int combine_groups(int64_t splits, int64_t maximum) const;

  // Adds the launch and the memory of that kernel to a plan.
  void add_combine(DecodePlan &plan, const ForwardProblem &problem) const;

  // Returns whether the next launch may begin as soon as all blocks run: its own blocks, which wait
  // then, would be spread over SMs as unevenly as places are left. Where a combine kernel waits
  // early, it begins up to 2.5 us late.
  bool begins_early(int64_t blocks, bool combines, int num_sms) const;

  // Returns the number of work ranges of stream-K: the number of resident blocks, or fewer if there
  // are fewer KV steps. If an SM has one split it gets one range: with two blocks on some SMs the
  // other one would be idle.
  int64_t n_ranges(const ForwardProblem &problem, int64_t all_splits, int num_sms) const;

 public:
  // `name`: the main function.
  template <typename Config>
  DecodeKernel(const CompiledKernel<Config> &kernel, const DecodeBlocks &blocks, const char *name,
               decltype(Launch::call) call)
      : Kernel(kernel),
        blocks_(blocks),
        decode_{.function = kernel.functions.at(name),
                .call = call,
                .grid = {},
                .cluster = 1,
                .threads = static_cast<unsigned>(threads_per_block(kernel.config)),
                .shared_memory_bytes = shared_memory_bytes(kernel.config),
                .overlaps = true},
        waiting_(kernel.functions.find("waiting_decode_kernel")),
        stream_k_(kernel.functions.find("stream_k_decode_kernel")),
        combine_(kernel.functions.at("combine_kernel")),
        append_(kernel.functions.at("cache_append_kernel")),
        cache(kernel.config.fp8_cache ? ScalarType::Float8_e4m3fn : kernel.config.dtype),
        per_token_scale(kernel.config.per_token_scale) {}

  const ScalarType cache;      // type of K and V
  const bool per_token_scale;  // each row of K and V may have a scale

  ScalarType type_of(Element element) const override {
    return element == Element::of_cache ? cache : tiles.dtype;
  }

  // Throws ValueError for a cache layout that the kernels cannot read.
  virtual void check_layout(const DecodeTensors &) const {}

  // `equal_lengths`: whether all requests surely have the max number of rows.
  DecodePlan plan(const ForwardProblem &problem, const DecodeNumbers &own, bool equal_lengths,
                  int num_sms) const;

  // Returns the number of chunks, of kPartialChunk numbers, in the partial result of a work tile.
  int64_t n_chunks(const ForwardProblem &problem) const;

  // Returns the arguments of all launches of the plan, for tensors that passed the checks.
  virtual KernelArguments arguments(const DecodeTensors &tensors, const ForwardProblem &problem,
                                    const Numbers &numbers, const DecodeNumbers &own,
                                    const DecodePlan &plan) const = 0;

  // Returns the plan that appends new keys and values.
  Plan append_plan(const AppendTensors &tensors) const;

  // Returns plan and decode, which take DecodeNumbers before the tensors, and decode also whether
  // to measure; append, which takes AppendNumbers; and bind.
  Operations operations() const override;
};

}  // namespace flashsmith
