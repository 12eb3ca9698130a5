// The global memory that the launches of one call share.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <optional>

#include "host/plan.h"

namespace flashsmith {

// Stands for a stream if the workspace was made for this call alone.
constexpr int64_t kFresh = -1;

// Returns the number of the device's current stream, whether or not this library is for such
// devices.
int64_t current_stream_number(DLDevice device);

// Returns whether launches go to `stream` now, and are not captured, so that memory kept for it may
// serve them.
bool is_current(DLDevice device, int64_t stream);

// Returns whether memory, which may be null, has at least this many bytes.
bool has_bytes(const tvm::ffi::TensorView *memory, int64_t bytes);

// Returns whether a call on the current stream may count in the workspace that its caller keeps for
// `stream`: launches restore its zeros, but work on another stream may run at the same time, and a
// captured graph may be replayed at any time. True for plans without zeros.
bool may_have_zeros(const Plan &plan, const tvm::ffi::TensorView *workspace, DLDevice device,
                    int64_t stream);

// The workspace of one call: the caller's; or, for launches that write what they read, memory from
// the caller's allocator, returned at the end of the call. The allocator gives it to no other
// stream before the launches have finished.
class OwnWorkspace {
 public:
  OwnWorkspace(const Plan &plan, const tvm::ffi::TensorView *given, DLDevice device);

  // Returns null if the call has no workspace.
  const tvm::ffi::TensorView *get() const { return view_ ? &*view_ : nullptr; }

 private:
  std::optional<tvm::ffi::Tensor> memory_;
  std::optional<tvm::ffi::TensorView> view_;
};

}  // namespace flashsmith
