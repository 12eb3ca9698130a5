// Calls of `decode` and `append` that a kernel took: the next one that looks the same is not
// checked again.
#pragma once

#include "host/args/append.h"
#include "host/decode_kernel.h"
#include "host/looks.h"

namespace flashsmith {

class AcceptedDecode {
 public:
  // Checks and plans everything but what changes with the addresses, and the memory that the
  // launches share. Throws ValueError or TypeError for tensors that the kernel does not take,
  // DeviceError for a GPU.
  AcceptedDecode(const DecodeKernel &kernel, const DecodeTensors &tensors, const Numbers &numbers,
                 const DecodeNumbers &own);

  // Whether `check` and `run` may have these: they look like those that were taken. No number but
  // top_left, which is refused, changes a plan; those of DecodeNumbers are the same at every call.
  bool fits(const DecodeTensors &tensors, const Numbers &numbers, const DecodeNumbers &) const {
    return !numbers.top_left && looks_.fit(tensors.all());
  }

  // Whether counters and workspace are as large as the plan wants them, and are the call's: they
  // are kept for `stream` (host/workspace.h).
  bool has_memory(const DecodeTensors &tensors, int64_t stream) const;

  // Callers keep one for all calls of a kernel, of which some plans want none.
  void leave_out_workspace(DecodeTensors &tensors) const;

  // What changes with the addresses. Throws ValueError for memory that is written and shared, too
  // little of it, or numbers of another variant.
  void check(const DecodeTensors &tensors, const Numbers &numbers) const;

  // For tensors that `check` took. Returns milliseconds if `timed`.
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
  // As of AcceptedDecode.
  AcceptedAppend(const DecodeKernel &kernel, const AppendTensors &tensors);
  bool fits(const AppendTensors &tensors) const { return looks_.fit(tensors.all()); }
  void check(const AppendTensors &tensors) const;
  void run(const AppendTensors &tensors, const AppendNumbers &numbers) const;

 private:
  Looks looks_;
  Plan plan_;
};

}  // namespace flashsmith
