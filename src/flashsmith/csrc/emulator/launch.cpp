#include "emulator/launch.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <mutex>
#include <thread>
#include <tuple>

#include "emulator/block.h"

namespace flashsmith::emulator {

namespace {

// Resets the caller's rounding and flush-to-zero modes, which must not change results.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&saved_); }
  DefaultFloatingPoint(const DefaultFloatingPoint &) = delete;
  DefaultFloatingPoint &operator=(const DefaultFloatingPoint &) = delete;

 private:
  std::fenv_t saved_;
};

// The grid, drained by the workers, and their combined results.
struct Grid {
  const Launch &launch;
  const Options &options;
  const uint64_t clusters;
  GlobalOrder order;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};

  std::mutex mutex{};  // guards the members below
  uint64_t failed_cluster = ~uint64_t{0};
  std::exception_ptr failure{};
  Report report{};
  bool dropped_one = false;

  void work();
  void merge(const Block &block);
  void record(uint64_t index, std::exception_ptr exception);
};

void Grid::record(uint64_t index, std::exception_ptr exception) {
  const std::lock_guard lock(mutex);
  failed = true;
  if (index < failed_cluster) {
    failed_cluster = index;
    failure = std::move(exception);
  }
}

void Grid::merge(const Block &block) {
  const std::lock_guard lock(mutex);
  report.counters.add(block.counters);
  for (const Step &step : block.sites) {
    report.sites.push_back({name(step.instruction()), base_name(step.where.file_name),
                            step.where.line, step.where.column});
  }
  dropped_one |= block.dropped_one;
}

void Grid::work() {
  const DefaultFloatingPoint floating_point;
  uint64_t index = 0;
  try {
    Cluster cluster(launch, options, order);
    // Clusters are handed out in order: all clusters before a failed one have been started.
    while (!failed && (index = next++) < clusters) cluster.run(index);
    for (const auto &block : cluster.blocks()) merge(*block);
  } catch (const GlobalOrder::Abandoned &) {
    // The fault of another block stops this one.
  } catch (...) {
    record(index, std::current_exception());
    order.abandon();
  }
  order.worker_ended();
}

void check(const Launch &launch, const Options &options) {
  constexpr unsigned kMaxThreads = 1024, kMaxCluster = 8;
  const auto refuse = [&](const std::string &what) {
    throw std::invalid_argument("emulated launch of " + launch.kernel + ": " + what);
  };
  if (launch.threads == 0 || launch.threads % kLanes != 0 || launch.threads > kMaxThreads) {
    refuse("threads is " + std::to_string(launch.threads) +
           ", must be a multiple of 32 from 32 to 1024");
  }
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) {
    refuse("grid is (" + std::to_string(launch.grid.x) + ", " + std::to_string(launch.grid.y) +
           ", " + std::to_string(launch.grid.z) + "), must be at least 1 in every dimension");
  }
  if (launch.cluster == 0 || launch.cluster > kMaxCluster || launch.grid.x % launch.cluster != 0) {
    refuse("cluster is " + std::to_string(launch.cluster) + ", must be 1 to 8 and divide grid.x, " +
           std::to_string(launch.grid.x));
  }
  if (!launch.body) refuse("body is empty");
  if (options.workers < 0) refuse("workers is negative");
}

}  // namespace

void Counters::add(const Counters &other) {
  mma += other.mma;
  ldmatrix += other.ldmatrix;
  longest_ldmatrix_run = std::max(longest_ldmatrix_run, other.longest_ldmatrix_run);
  longest_mma_run = std::max(longest_mma_run, other.longest_mma_run);
  cp_async += other.cp_async;
  cp_async_in_flight_mma += other.cp_async_in_flight_mma;
  shuffles += other.shuffles;
  barriers += other.barriers;
  shared_wavefronts += other.shared_wavefronts;
  shared_wavefronts_ideal += other.shared_wavefronts_ideal;
  global_load_bytes += other.global_load_bytes;
  global_load_sectors += other.global_load_sectors;
  global_store_bytes += other.global_store_bytes;
  global_store_sectors += other.global_store_sectors;
  wgmma += other.wgmma;
  wgmma_flops += other.wgmma_flops;
  wgmma_shared_bytes += other.wgmma_shared_bytes;
  tma_loads += other.tma_loads;
  tma_load_bytes += other.tma_load_bytes;
  tma_stores += other.tma_stores;
  tma_store_bytes += other.tma_store_bytes;
  mbarrier_waits += other.mbarrier_waits;
  mbarrier_arrivals += other.mbarrier_arrivals;
  named_barriers += other.named_barriers;
}

namespace {

// Runs one grid and returns its report, in any order; sets `dropped_one` if the dropped site ran.
Report run(const Launch &launch, const Options &options, bool &dropped_one) {
  check(launch, options);
  const uint64_t clusters =
      uint64_t{launch.grid.x / launch.cluster} * launch.grid.y * launch.grid.z;
  uint64_t workers = options.workers > 0 ? static_cast<uint64_t>(options.workers)
                                         : std::max(1u, std::thread::hardware_concurrency());
  workers = std::min(workers, clusters);
  Grid grid{
      .launch = launch, .options = options, .clusters = clusters, .order = GlobalOrder(workers)};
  std::vector<std::jthread> others;
  try {
    for (uint64_t i = 1; i < workers; ++i) others.emplace_back([&grid] { grid.work(); });
  } catch (...) {
    // If no more threads can be started, the existing ones do the work.
    for (uint64_t i = others.size() + 1; i < workers; ++i) grid.order.worker_ended();
  }
  grid.work();
  others.clear();  // waits for them

  if (grid.failure) std::rethrow_exception(grid.failure);
  dropped_one |= grid.dropped_one;
  return std::move(grid.report);
}

}  // namespace

Report launch(const Launch &launch, const Options &options) {
  return flashsmith::emulator::launch(std::span(&launch, 1), options);
}

Report launch(std::span<const Launch> launches, const Options &options) {
  Report all;
  bool dropped_one = false;
  for (const Launch &each : launches) {
    const Report own = run(each, options, dropped_one);
    all.counters.add(own.counters);
    all.sites.insert(all.sites.end(), own.sites.begin(), own.sites.end());
  }
  if (options.dropped && !dropped_one) {
    const Site &site = *options.dropped;
    throw std::invalid_argument("emulated launch of " + launches.back().kernel + ": dropped site " +
                                site.kind + " at " + site.file + ":" + std::to_string(site.line) +
                                ":" + std::to_string(site.column) + " never ran");
  }
  std::vector<Site> &sites = all.sites;
  const auto key = [](const Site &s) { return std::tie(s.file, s.line, s.column, s.kind); };
  std::sort(sites.begin(), sites.end(), [&](auto &a, auto &b) { return key(a) < key(b); });
  sites.erase(std::unique(sites.begin(), sites.end()), sites.end());
  return all;
}

}  // namespace flashsmith::emulator
