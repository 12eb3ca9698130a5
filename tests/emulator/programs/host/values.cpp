// Prints, as JSON, results of host functions that no launch on the emulator calls.
#include <iostream>
#include <limits>
#include <random>
#include <utility>

#include "flashsmith/attention/divisor.cuh"
#include "flashsmith/ptx/wgmma.cuh"
#include "flashsmith/sm80/traits.cuh"
#include "flashsmith/sm90/arguments.cuh"
#include "host/args/divisor.h"
#include "host/family_gpus.h"
#include "host/group_parts.h"
#include "host/tiles_together.h"

using namespace flashsmith;

namespace {

Sm90ForwardKernelConfig config(int cluster_size, bool persistent, int B_r = 128) {
  Sm90ForwardKernelConfig cfg{};
  cfg.B_r = B_r, cfg.cluster_size = cluster_size, cfg.persistent = persistent;
  return cfg;
}

// Prints the thread blocks for `tiles` on 1 to 9 SMs.
void print_grids(const char *name, const Sm90ForwardKernelConfig &cfg, int tiles) {
  std::cout << "\"" << name << "\": [";
  for (int n = 1; n <= 9; n++) std::cout << (n > 1 ? ", " : "") << grid_blocks(cfg, tiles, n);
  std::cout << "],\n";
}

void print_blocks(const char *name, const Sm90ForwardKernelConfig &cfg) {
  std::cout << "\"" << name << "\": [";
  for (int rows : {1, 127, 128, 129, 256, 257}) {
    std::cout << (rows > 1 ? ", " : "") << Q_blocks(cfg, rows, 1);
  }
  std::cout << "],\n";
}

void print_gpus(const FamilyGpus &gpus) {
  std::cout << "\"" << gpus.family << "\": [";
  const char *separator = "";
  for (int major = 7; major <= 12; major++) {
    for (int minor : {0, 5}) {
      if (!gpus.include(major, minor)) continue;
      std::cout << separator << "\"" << major << "." << minor << "\"";
      separator = ", ";
    }
  }
  std::cout << "]";
}

constexpr int kNumbers = 300;

// Prints the numbers from 0 on for which `holds`, after a -1.
template <typename Predicate>
void print_numbers(const char *name, Predicate holds) {
  std::cout << ",\n\"" << name << "\": [-1";
  for (int n = 0; n < kNumbers; n++) {
    if (holds(n)) std::cout << ", " << n;
  }
  std::cout << "]";
}

// Prints the divisors by which a quotient is wrong, of numbers around their multiples and others.
void print_wrong_quotients() {
  constexpr int kMax = std::numeric_limits<int>::max();
  std::mt19937 drawn(0);
  std::cout << ",\n\"wrong quotients\": [-1";
  for (int i = 0; i < 5000; i++) {
    const int value = i < 1000 ? i + 1 : i < 1040 ? kMax - (i - 1000) : (drawn() >> i % 31) / 2 + 1;
    const Divisor by = divisor(value);
    bool right = quotient(0, by) == 0 && quotient(kMax, by) == kMax / value;
    for (int j = 0; j < 40; j++) {
      const int x = drawn() / 2, multiple = x / value * value;
      right &= quotient(x, by) == x / value && quotient(multiple, by) == multiple / value;
      if (multiple > 0) right &= quotient(multiple - 1, by) == (multiple - 1) / value;
    }
    if (!right) std::cout << ", " << value;
  }
  std::cout << "]";
}

// A causal backward of grouped heads, as large as on an H200.
struct GroupedCall {
  int d_head, B_c;
  bool in_order;
  int batch, heads, heads_kv, length;
};

int parts_of(const GroupedCall &call) {
  constexpr int kSMs = 132, kQueries = 64, kMinInOrder = 8;
  const int heads_of_k = call.batch * call.heads_kv;
  const int64_t sums = int64_t{heads_of_k} * call.length * 2 * call.d_head * sizeof(float);
  GroupedProblem problem{.group = call.heads / call.heads_kv,
                         .sequences = {{heads_of_k, steps_of_tiles(call.length, call.length,
                                                                   kQueries, call.B_c, true)}},
                         .n_empty = 0,
                         .has_fewer_steps = false,
                         .costs = {},
                         .num_sms = kSMs};
  const bool stays = call.in_order && !problem.has_many_tiles();
  problem.costs =
      part_costs(!call.in_order, !stays && call.d_head > 64, step_us(call.d_head, call.B_c), sums);
  return best_parts(problem, [&](int n_tiles, int n_heads) {
    return heads_that_fill(kSMs, n_tiles, n_heads, call.in_order ? kMinInOrder : 1);
  });
}

void print_parts() {
  constexpr GroupedCall kCalls[] = {
      {128, 128, false, 1, 8, 1, 4096},   {128, 128, false, 1, 28, 4, 8649},
      {128, 128, false, 1, 28, 4, 14000}, {128, 128, false, 2, 28, 4, 11141},
      {128, 128, false, 1, 64, 8, 16000}, {128, 128, false, 1, 32, 8, 8192},
      {128, 128, false, 4, 32, 8, 5000},  {128, 128, true, 14, 64, 8, 2009},
      {128, 128, true, 4, 64, 8, 3651}};
  std::cout << ",\n\"parts\": [";
  const char *separator = "";
  for (const GroupedCall &call : kCalls) {
    std::cout << separator << parts_of(call);
    separator = ", ";
  }
  std::cout << "]";
}

template <int... kN>
bool is_width(int n, std::integer_sequence<int, kN...>) {
  constexpr bool kIsWidth[] = {ptx::is_wgmma_n<kN>...};
  return kIsWidth[n];
}

}  // namespace

int main() {
  std::cout << "{";
  print_grids("one tile a block", config(1, false), 6);
  print_grids("persistent", config(1, true), 6);
  print_grids("clusters of 2", config(2, true), 6);
  print_grids("clusters of 2, one tile a block", config(2, false), 6);
  print_blocks("Q blocks", config(1, true));
  print_blocks("Q blocks in clusters of 2", config(2, true, 64));
  print_gpus({.family = "8.0 or newer", .major = 8, .minor = 0, .exact = false});
  std::cout << ",\n";
  print_gpus({.family = "8.5 or newer", .major = 8, .minor = 5, .exact = false});
  std::cout << ",\n";
  print_gpus({.family = "9.0 alone", .major = 9, .minor = 0, .exact = true});
  print_numbers("fragments at a time", sm80::is_load_count);
  print_numbers("columns of a wgmma",
                [](int n) { return is_width(n, std::make_integer_sequence<int, kNumbers>()); });
  print_wrong_quotients();
  print_parts();
  std::cout << "}\n";
}
