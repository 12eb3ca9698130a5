#include "host/accepted_call.h"

#include <algorithm>

namespace flashsmith {
namespace {

constexpr uintptr_t kWidestAccess = 16;  // bytes: more alignment than this makes no difference

TensorLook look_at(const tvm::ffi::TensorView &t) {
  TensorLook look{.rank = t.ndim(), .dtype = t.dtype(), .device = t.device()};
  std::ranges::copy_n(t.shape().data(), t.ndim(), look.sizes.begin());
  std::ranges::copy_n(t.strides().data(), t.ndim(), look.strides.begin());
  look.misalignment = reinterpret_cast<uintptr_t>(t.data_ptr()) % kWidestAccess;
  return look;
}

}  // namespace

bool TensorLook::operator==(const TensorLook &other) const {
  return rank == other.rank && dtype.code == other.dtype.code && dtype.bits == other.dtype.bits &&
         dtype.lanes == other.dtype.lanes && device.device_type == other.device.device_type &&
         device.device_id == other.device.device_id && sizes == other.sizes &&
         strides == other.strides && misalignment == other.misalignment;
}

std::optional<CallLook> look_of(const Tensors &tensors, const ForwardNumbers &numbers) {
  CallLook look{.max_seqlen_q = numbers.max_seqlen_q};
  for (size_t i = 0; i < tensors.size(); i++) {
    if (!tensors.given[i]) continue;
    if (tensors.given[i]->ndim() > kMaxRank) return std::nullopt;
    look.tensors[i] = look_at(*tensors.given[i]);
  }
  return look;
}

}  // namespace flashsmith
