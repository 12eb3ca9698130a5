// What a call looked like that a kernel took: the next one that looks the same is not checked
// again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "host/args/forward.h"
#include "host/plan.h"

namespace flashsmith {

// All of a tensor but its contents, and its address but for the alignment. The default is that of
// none: no dtype has 0 bits.
struct TensorLook {
  int rank = 0;
  DLDataType dtype{};
  DLDevice device{};
  std::array<int64_t, kMaxRank> sizes{}, strides{};
  uintptr_t misalignment = 0;

  bool operator==(const TensorLook &other) const;
};

struct CallLook {
  std::array<TensorLook, kForwardArguments.size()> tensors{};
  int64_t max_seqlen_q = -1;  // the number on which a plan depends

  bool operator==(const CallLook &) const = default;
};

// None for tensors of more dimensions than any argument has.
std::optional<CallLook> look_of(const Tensors &tensors, const ForwardNumbers &numbers);

struct AcceptedCall {
  CallLook look;
  ForwardProblem problem;
  Plan plan;
};

}  // namespace flashsmith
