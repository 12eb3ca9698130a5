// The global memory that the launches of one call share.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <optional>

#include "host/plan.h"

namespace flashsmith {

// In place of a stream: the workspace was made for this call alone.
constexpr int64_t kFresh = -1;

// The number of the stream to which launches on a device go now, whether or not this library is for
// such devices.
int64_t current_stream_number(DLDevice device);

// Whether launches go to `stream` now, and are not captured: what is kept for it may serve them.
bool is_current(DLDevice device, int64_t stream);

// Whether memory, or null, is as large as that.
bool has_bytes(const tvm::ffi::TensorView *memory, int64_t bytes);

// Whether a call on the current stream may count in the workspace that its caller keeps for
// `stream`: launches leave its zeros as they were, but work on another stream may run at the same
// time, and a graph that is captured may be replayed at any time. True for plans without zeros.
bool may_have_zeros(const Plan &plan, const tvm::ffi::TensorView *workspace, DLDevice device,
                    int64_t stream);

// The workspace of one call: the caller's; or memory from the caller's allocator, given back at the
// end of the call, for launches that write what they read. Its allocator gives it to no other
// stream before the launches are over.
class OwnWorkspace {
 public:
  OwnWorkspace(const Plan &plan, const tvm::ffi::TensorView *given, DLDevice device);

  // Null: the call has none.
  const tvm::ffi::TensorView *get() const { return view_ ? &*view_ : nullptr; }

 private:
  std::optional<tvm::ffi::Tensor> memory_;
  std::optional<tvm::ffi::TensorView> view_;
};

}  // namespace flashsmith
