#include "emulator/wgmma.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/block.h"
#include "emulator/matrix_operand.h"

namespace flashsmith::emulator {

namespace {

constexpr uint32_t kPoison = 0x7F8BADF0;  // a signalling NaN: arithmetic with it leaves a trace
constexpr unsigned kWarpRows = 16;

bool same_instruction(const Wgmma &x, const Wgmma &y) {
  return x.a == y.a && x.b == y.b && x.n == y.n && x.type == y.type &&
         x.a_mn_major == y.a_mn_major && x.b_mn_major == y.b_mn_major &&
         x.accumulate == y.accumulate && !x.a_registers == !y.a_registers;
}

// Visits pairs of registers 2i and 2i + 1 of a lane, which are neighbours in a row: row g or, for
// odd i, g + 8 of the warp's 16, columns 8 * (i / 2) + 2p and the next one; g = lane / 4, p = lane
// % 4.
template <class Visit>
void each_pair(unsigned warp, unsigned lane, int n, Visit visit) {
  const unsigned g = lane / 4, p = lane % 4;
  for (int i = 0; i < n / 4; ++i) {
    const unsigned row = warp * kWarpRows + g + (i % 2 ? 8 : 0);
    const unsigned column = static_cast<unsigned>(i / 2) * 8 + 2 * p;
    visit(2 * i, row * static_cast<unsigned>(n) + column);
  }
}

}  // namespace

void Warpgroup::Accumulators::take(unsigned warp, const Wgmma *const *lanes) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    float *c = registers[warp][lane] = lanes[lane]->c;
    each_pair(warp, lane, n,
              [&](int i, unsigned at) { std::memcpy(&values[at], &c[i], 2 * sizeof(float)); });
    std::fill_n(reinterpret_cast<uint32_t *>(c), n / 2, kPoison);
  }
}

void Warpgroup::Accumulators::give_back(unsigned warp) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    float *c = registers[warp][lane];
    for (int i = 0; i < n / 2; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &c[i], sizeof bits);
      if (bits != kPoison) {
        throw Problem{lane, "accumulator register " + std::to_string(i) +
                                " was written while wgmma was in flight on it"};
      }
    }
    each_pair(warp, lane, n,
              [&](int i, unsigned at) { std::memcpy(&c[i], &values[at], 2 * sizeof(float)); });
  }
}

void Warpgroup::start_block() {
  operations_.clear();
  accumulators_.clear();
  first_ = 0;
  std::fill_n(progress_, kWarpgroupWarps, Progress{});
}

Warpgroup::Progress &Warpgroup::progress_of(const Warp &warp) {
  return progress_[warp.number % kWarpgroupWarps];
}

Warpgroup::Operation &Warpgroup::next_operation(unsigned warp, const Wgmma &shape) {
  const uint64_t number = progress_[warp].issued++;
  if (number - first_ == operations_.size()) {
    return operations_.emplace_back(
        Operation{.shape = shape, .accumulators = find_accumulators(warp, shape)});
  }
  Operation &operation = operations_[number - first_];
  if (!same_instruction(operation.shape, shape)) {
    throw Problem{0, "another warp of the warpgroup executes a different one here"};
  }
  return operation;
}

std::shared_ptr<Warpgroup::Accumulators> Warpgroup::find_accumulators(unsigned warp,
                                                                      const Wgmma &shape) {
  for (const auto &accumulators : accumulators_) {
    if (accumulators->registers[warp][0] == shape.c && accumulators->n == shape.n) {
      return accumulators;
    }
  }
  const auto count = static_cast<size_t>(kWgmmaM) * static_cast<size_t>(shape.n);
  return accumulators_.emplace_back(std::make_shared<Accumulators>(shape.n, count));
}

void Warpgroup::issue(Warp &warp, const Wgmma *const *lanes) {
  const unsigned w = warp.number % kWarpgroupWarps;
  const Wgmma &shape = *lanes[0];
  for (unsigned lane = 1; lane < kLanes; ++lane) {
    if (!same_instruction(shape, *lanes[lane])) {
      throw Problem{lane, "the lanes of the warp give different operands"};
    }
  }
  if (shape.n < 8 || shape.n > kWgmmaMaxN || shape.n % 8 != 0) {
    throw Problem{0, "n is " + std::to_string(shape.n) + ": must be a multiple of 8 up to 256"};
  }
  Operation &operation = next_operation(w, shape);
  block_.clocks.meet(operation.ordered, block_.clocks.seen(warp.index));
  Accumulators &accumulators = *operation.accumulators;
  const bool chained = accumulators.pending[w]++ > 0;
  if (!progress_[w].fenced && (!chained || shape.a_registers)) {
    throw Problem{0, "its registers were the kernel's before: needs a wgmma_fence first"};
  }
  if (chained && accumulators.registers[w][0] != shape.c) {
    throw Problem{0, "the warps of the warpgroup disagree on which accumulators it uses"};
  }
  if (!chained) accumulators.take(w, lanes);
  for (unsigned lane = 0; lane < kLanes && shape.a_registers; ++lane) {
    operation.a_registers[w][lane] = lanes[lane]->a_registers;
    std::memcpy(operation.a[w][lane], lanes[lane]->a_registers, sizeof operation.a[w][lane]);
  }
  if (++operation.issued == kWarpgroupWarps) block_.retry_waiting();
}

void Warpgroup::commit(Warp &warp) {
  Progress &progress = progress_of(warp);
  progress.groups.push_back(progress.issued);
}

bool Warpgroup::wait(Warp &warp, unsigned pending) {
  const unsigned w = warp.number % kWarpgroupWarps;
  Progress &progress = progress_[w];
  if (progress.groups.size() <= pending) return true;
  const uint64_t end = progress.groups[progress.groups.size() - pending - 1];
  const auto at = [&](uint64_t number) -> Operation & { return operations_[number - first_]; };
  for (uint64_t i = progress.waited; i < end; ++i) {
    if (at(i).issued != kWarpgroupWarps) return false;
  }
  const unsigned component = block_.clocks.tensor(index_);
  const bool any_new = end > progress.waited && !at(end - 1).executed;
  const uint32_t epoch = any_new ? block_.clocks.next(component) : 0;
  for (; progress.waited < end; ++progress.waited) {
    Operation &operation = at(progress.waited);
    if (!operation.executed) execute(operation, epoch, warp.index);
    retire(operation, w);
    block_.clocks.acquire(warp.index, component, operation.epoch);
    progress.fenced = false;
  }
  progress.groups.erase(progress.groups.begin(),
                        progress.groups.end() - static_cast<ptrdiff_t>(pending));
  while (!operations_.empty() && operations_.front().waited == kWarpgroupWarps) {
    operations_.pop_front();
    ++first_;
  }
  std::erase_if(accumulators_, [](const auto &one) {
    return std::all_of(one->pending, one->pending + kWarpgroupWarps, std::logical_not<>{});
  });
  return true;
}

void Warpgroup::execute(Operation &operation, uint32_t epoch, unsigned warp) {
  operation.executed = true;
  operation.epoch = epoch;
  const Wgmma &shape = operation.shape;
  const AsyncAccess access{.component = block_.clocks.tensor(index_),
                           .epoch = epoch,
                           .ordered = operation.ordered.data(),
                           .instruction = Instruction::wgmma,
                           .warp = warp,
                           .lane = SharedMemory::kWholeWarp};
  const int n_k = wgmma_k(shape.type), of_word = 4 / bytes_of(shape.type);
  alignas(64) float a[kWgmmaMaxK * kWgmmaM], b[kWgmmaMaxK * kWgmmaMaxN];
  if (shape.a_registers) {
    for (unsigned row = 0; row < kWgmmaM; ++row) {
      const unsigned g = row % 8, half = row / 8 % 2;
      for (unsigned i = 0; i < kWgmmaKBytes / sizeof(uint32_t); ++i) {
        const uint32_t word = operation.a[row / kWarpRows][g * 4 + i % 4][half + i / 4 * 2];
        const unsigned first = i * static_cast<unsigned>(of_word);
        decode_word(word, shape.type, &a[first * kWgmmaM + row], kWgmmaM);
      }
    }
  } else {
    read_operand(block_.shared, access, shape.a, kWgmmaM, shape.a_mn_major, shape.type, a);
  }
  read_operand(block_.shared, access, shape.b, shape.n, shape.b_mn_major, shape.type, b);
  std::vector<float> &c = operation.accumulators->values;
  if (!shape.accumulate) std::fill(c.begin(), c.end(), 0.0f);
  const auto multiply = shape.type == MmaType::e4m3 ? multiply_add_e4m3 : multiply_add;
  multiply(c.data(), a, b, shape.n);

  const auto n = static_cast<uint64_t>(shape.n);
  const uint64_t rows_read = n + (shape.a_registers ? 0 : kWgmmaM);
  ++block_.counters.wgmma;
  block_.counters.wgmma_flops += 2 * kWgmmaM * static_cast<uint64_t>(n_k) * n;
  block_.counters.wgmma_shared_bytes += rows_read * kWgmmaKBytes;
}

void Warpgroup::retire(Operation &operation, unsigned warp) {
  ++operation.waited;
  for (unsigned lane = 0; lane < kLanes && operation.shape.a_registers; ++lane) {
    if (std::memcmp(operation.a_registers[warp][lane], operation.a[warp][lane],
                    sizeof operation.a[warp][lane]) != 0) {
      throw Problem{lane, "registers of a were written while wgmma was in flight on them"};
    }
  }
  Accumulators &accumulators = *operation.accumulators;
  if (--accumulators.pending[warp] == 0) accumulators.give_back(warp);
}

bool Warpgroup::in_flight(const Warp &warp) const {
  const Progress &progress = progress_[warp.number % kWarpgroupWarps];
  return progress.waited != progress.issued;
}

}  // namespace flashsmith::emulator
