// Calls of `decode` and `append` that a kernel has accepted: the next call with the same looks is
// not checked again.
#pragma once

#include "host/args/append.h"
#include "host/decode_kernel.h"
#include "host/looks.h"

namespace flashsmith {

class AcceptedDecode {
 public:
  // Checks and plans everything except what changes with the addresses and the memory that the
  // launches share. Throws ValueError or TypeError for tensors that the kernel does not take,
  // DeviceError for a GPU.
  AcceptedDecode(const DecodeKernel &kernel, const DecodeTensors &tensors, const Numbers &numbers,
                 const DecodeNumbers &own);

  // Returns whether `check` and `run` take these tensors: they look like the accepted ones. The
  // only number that changes a plan is top_left, which is refused; DecodeNumbers are the same at
  // every call.
  bool fits(const DecodeTensors &tensors, const Numbers &numbers, const DecodeNumbers &) const {
    return !numbers.top_left && looks_.fit(tensors.all());
  }

  // Returns whether counters and workspace are as large as the plan needs, and belong to the call:
  // they are kept for `stream` (host/workspace.h).
  bool has_memory(const DecodeTensors &tensors, int64_t stream) const;

  // Drops the workspace if the plan needs none: callers keep one for all calls of a kernel.
  void leave_out_workspace(DecodeTensors &tensors) const;

  // Checks what changes with the addresses. Throws ValueError for written memory that is shared,
  // too little memory, or numbers of another variant.
  void check(const DecodeTensors &tensors, const Numbers &numbers) const;

  // Runs the plan for tensors that `check` accepted. Returns milliseconds if `timed`.
  double run(const DecodeTensors &tensors, const Numbers &numbers, bool timed) const;

 private:
  const DecodeKernel &kernel_;
  DecodeNumbers own_;
  Looks looks_;
  ForwardProblem problem_;
  DecodePlan plan_;
};

class AcceptedAppend {
 public:
  // Checks and plans like AcceptedDecode.
  AcceptedAppend(const DecodeKernel &kernel, const AppendTensors &tensors);
  bool fits(const AppendTensors &tensors) const { return looks_.fit(tensors.all()); }
  void check(const AppendTensors &tensors) const;
  void run(const AppendTensors &tensors, const AppendNumbers &numbers) const;

 private:
  Looks looks_;
  Plan plan_;
};

}  // namespace flashsmith
