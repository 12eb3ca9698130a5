#include "emulator/block.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace flashsmith::emulator {

constinit thread_local Thread *self = nullptr;

namespace {

// The part of a stack that a fault needs to unwind and to write its message.
constexpr size_t kStackReserve = 32 << 10;
// Stacks at equal distances would share the same cache sets.
constexpr size_t kStackColours = 32, kStackColourBytes = 128;

// Returns the registers of a thread at launch, if the launch bounds leave room for one block on an
// SM.
unsigned launch_registers(unsigned threads) {
  constexpr unsigned kRegisters = 64 << 10, kMax = 255, kUnit = 8;
  return std::min(kMax, kRegisters / threads / kUnit * kUnit);
}

// Returns the first lane of the warp that waits alone, or nullptr.
const Thread *lane_waits(const Warp &warp) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const Thread &thread = warp.threads[lane];
    if (thread.waits_for || thread.waits_for_word) return &thread;
  }
  return nullptr;
}

std::string describe_thread(unsigned warp, unsigned lane) {
  return "thread " + std::to_string(warp * kLanes + lane) + " (warp " + std::to_string(warp) +
         ", lane " + std::to_string(lane) + ")";
}

}  // namespace

uint64_t Thread::in_grid() const { return block->index * block->launch.threads + index; }

Block::Block(Cluster &cluster, unsigned rank)
    : cluster(cluster),
      rank(rank),
      launch(cluster.launch),
      options(cluster.options),
      clocks(cluster.clocks),
      shared(launch.shared_memory_bytes, clocks, rank * (launch.threads / kLanes),
             launch.threads / kLanes),
      global(launch.memory),
      mbarriers(*this),
      named_barriers(*this),
      stores(*this),
      threads_(launch.threads),
      warps_(launch.threads / kLanes),
      stacks_(launch.threads) {
  const auto groups = static_cast<unsigned>(warps_.size()) / kWarpgroupWarps;
  for (unsigned i = 0; i < groups; ++i) warpgroups.emplace_back(*this, rank * groups + i);
  for (unsigned i = 0; i < launch.threads; ++i) {
    Warp &warp = warps_[i / kLanes];
    threads_[i].block = this;
    threads_[i].warp = &warp;
    threads_[i].index = i;
    threads_[i].lane = i % kLanes;
    threads_[i].stack_limit = stacks_.bottom(i) + kStackReserve;
    if (i % kLanes == 0) {
      warp.number = i / kLanes;
      warp.index = rank * (launch.threads / kLanes) + warp.number;
      warp.threads = &threads_[i];
    }
  }
}

void Block::start(uint64_t index) {
  this->index = index;
  const Dim3 grid = launch.grid;
  block_index = {static_cast<unsigned>(index % grid.x),
                 static_cast<unsigned>(index / grid.x % grid.y),
                 static_cast<unsigned>(index / grid.x / grid.y)};
  shared.start_block();
  mbarriers.start_block();
  named_barriers.start_block();
  stores.start_block();
  for (Warpgroup &group : warpgroups) group.start_block();
  running_ = warps_.size();
  const unsigned registers = launch_registers(launch.threads);
  free_registers = 0;
  for (Warp &warp : warps_) {
    warp.ready = kAllLanes;
    warp.exited = warp.arrived = 0;
    warp.last_site = Where{};
    warp.copies.clear();
    warp.group_sizes.clear();
    warp.ldmatrix_run = warp.mma_run = 0;
    warp.retries = false;
    warp.registers = registers;
  }
  for (Thread &thread : threads_) {
    char *top = stacks_.top(thread.index) - thread.index % kStackColours * kStackColourBytes;
    thread.waits_for = nullptr;
    thread.waits_for_word = nullptr;
    thread.polls_word = false;
    thread.has_waited = !launch.overlaps;
    prepare_fiber(thread.fiber, stacks_.bottom(thread.index), top, &Block::fiber_main);
  }
}

void Block::finish() {
  stores.finish();
  const unsigned unfinished = named_barriers.unfinished();
  const Mbarrier *in_flight = mbarriers.in_flight();
  const Thread *arrival = mbarriers.unseen_arrival();
  if (in_flight) {
    const BulkLoad &load = in_flight->loads[0];
    const Thread &issuer = *load.issuer;
    const Thread &speaker = issuer.block == this ? issuer : threads_[0];
    fail(*speaker.warp, speaker.lane,
         "the block ends while " + std::string(name(load.instruction())) +
             " is in flight: nobody has waited for " + in_flight->describe());
  } else if (arrival) {
    fail(warps_[0], 0,
         "the block ends while thread " + std::to_string(arrival->index) +
             " of the block of rank " + std::to_string(arrival->block->rank) +
             " may yet arrive at an mbarrier of it: needs a wait for that, or a cluster_sync");
  } else if (unfinished != NamedBarriers::kBarriers) {
    fail(warps_[0], 0,
         "the block ends while threads have arrived at barrier " + std::to_string(unfinished) +
             " and nobody has waited for them");
  }
  for (const Warp &warp : warps_) {
    const Warp &first = warps_[warp.number / kWarpgroupWarps * kWarpgroupWarps];
    if (warp.registers != first.registers) {
      fail(warp, 0, "set_register_count has not run in all warps of the warpgroup");
    }
  }
}

void Block::fiber_main() {
  Thread &thread = *self;
  Block &block = *thread.block;
  try {
    block.launch.body();
    block.exit(thread);
  } catch (const Problem &problem) {
    const bool of_lane = problem.step.instruction() != Instruction::none;
    const Step &step = of_lane ? problem.step : thread.warp->step;
    block.fail(*thread.warp, problem.lane, step.describe() + ": " + problem.text);
  } catch (...) {
    block.cluster.fail(std::current_exception());
  }
  if (block.cluster.failed() || thread.warp->ready == 0) {
    block.cluster.yield(thread);
  } else {
    suspend(thread);
  }
  std::terminate();  // unreachable: a thread that has returned is not resumed
}

void Block::exit(Thread &thread) {
  Warp &warp = *thread.warp;
  warp.exited |= 1u << thread.lane;
  warp.ready &= ~(1u << thread.lane);
  if (warp.exited == kAllLanes) --running_;
  if (warp.arrived != 0) {
    const auto waiting = static_cast<unsigned>(std::countr_zero(warp.arrived));
    fail(warp, thread.lane,
         "returns from the kernel while lane " + std::to_string(waiting) +
             " of its warp waits for it in " + warp.step.describe());
  } else if (const Instruction store = stores.unread(thread); store != Instruction::none) {
    fail(warp, thread.lane,
         "returns from the kernel while " + std::string(name(store)) +
             " reads shared memory: needs a tma_store_wait_group_read");
  } else if (warp.number / kWarpgroupWarps < warpgroups.size() &&
             warpgroups[warp.number / kWarpgroupWarps].in_flight(warp)) {
    fail(warp, thread.lane,
         "returns from the kernel while wgmma is in flight: no wgmma_wait_group has covered it");
  }
}

void Block::refuse_arrival(Thread &thread, const Step &step) {
  Warp &warp = *thread.warp;
  const Step theirs = std::exchange(warp.step, step);
  if (warp.exited != 0) {
    const auto gone = static_cast<unsigned>(std::countr_zero(warp.exited));
    throw Problem{thread.lane,
                  "lane " + std::to_string(gone) + " of the warp has returned from the kernel"};
  }
  if (theirs.key != step.key) {
    const auto other = static_cast<unsigned>(std::countr_zero(warp.arrived));
    throw Problem{thread.lane, "divergence: lane " + std::to_string(other) + " of the warp is at " +
                                   theirs.describe()};
  }
  throw Problem{thread.lane, "stack overflow: the kernel's frames leave less than " +
                                 std::to_string(kStackReserve) + " bytes of the thread's stack"};
}

void Block::wait_and_retry(Warp &warp) {
  warp.ready = 0;
  warp.retries = true;
}

void Block::retry_waiting() {
  for (Warp &warp : warps_) {
    if (std::exchange(warp.retries, false)) warp.ready = kAllLanes;
  }
}

void Block::fail(const Warp &warp, unsigned lane, const std::string &text) {
  std::string message = "kernel " + launch.kernel + ", block (" + std::to_string(block_index.x) +
                        ", " + std::to_string(block_index.y) + ", " +
                        std::to_string(block_index.z) + "), " + describe_thread(warp.number, lane) +
                        ": " + text;
  const Where &site = warp.last_site;
  if (site.line != 0) message += " [the warp last passed " + describe(site) + "]";
  cluster.fail(std::make_exception_ptr(Fault(message)));
}

std::string describe_waiting(const Warp &warp) {
  const bool returned = warp.exited == kAllLanes;
  std::string text = "warp " + std::to_string(warp.number) + (returned ? " has returned" : "");
  const Thread *alone = lane_waits(warp);
  if (warp.arrived != 0 || (!returned && !alone)) text += " waits at " + warp.step.describe();
  if (alone) {
    text += ", lane " + std::to_string(alone->lane) + " waits at " + alone->waits_at.describe() +
            " for " +
            (alone->waits_for
                 ? alone->waits_for->describe()
                 : "a word in global memory that is " + std::to_string(*alone->waits_for_word));
  }
  return text;
}

bool Block::drops(const Step &step) {
  if (!options.dropped) return false;
  const Site &site = *options.dropped;
  const bool dropped = site.line == step.where.line && site.column == step.where.column &&
                       site.kind == name(step.instruction()) &&
                       site.file == base_name(step.where.file_name);
  dropped_one |= dropped;
  return dropped;
}

void Block::passed(Warp &warp, const Step &step) {
  warp.last_site = step.where;
  for (const Step &site : sites) {
    if (site.key == step.key && std::strcmp(site.where.file_name, step.where.file_name) == 0) {
      return;
    }
  }
  sites.push_back(step);
}

}  // namespace flashsmith::emulator
