#include "host/looks.h"

#include <algorithm>

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr uintptr_t kWidestAccess = 16;  // bytes: alignment beyond this makes no difference

uintptr_t misalignment_of(const TensorView &t) {
  return reinterpret_cast<uintptr_t>(t.data_ptr()) % kWidestAccess;
}

TensorLook look_at(const TensorView &t) {
  TensorLook look{.rank = t.ndim(),
                  .dtype = t.dtype(),
                  .device = t.device(),
                  .sizes = {},
                  .strides = {},
                  .misalignment = misalignment_of(t)};
  if (t.ndim() > kMaxRank) return look;
  std::ranges::copy_n(t.shape().data(), t.ndim(), look.sizes.begin());
  std::ranges::copy_n(t.strides().data(), t.ndim(), look.strides.begin());
  return look;
}

}  // namespace

bool TensorLook::fits(const TensorView &t) const {
  return rank == t.ndim() && rank <= kMaxRank && dtype == t.dtype() &&
         device.device_type == t.device().device_type && device.device_id == t.device().device_id &&
         std::equal(t.shape().data(), t.shape().data() + rank, sizes.begin()) &&
         std::equal(t.strides().data(), t.strides().data() + rank, strides.begin()) &&
         misalignment == misalignment_of(t);
}

Looks::Looks(const Tensors &tensors) {
  for (size_t i = 0; i < tensors.size(); i++) {
    if (!tensors.given[i]) continue;
    given_ |= uint32_t{1} << i;
    looks_.push_back(look_at(*tensors.given[i]));
  }
}

bool Looks::fit(const Tensors &tensors) const {
  auto look = looks_.begin();
  for (size_t i = 0; i < tensors.size(); i++) {
    const bool given = (given_ >> i) & 1;
    if (given != (tensors.given[i] != nullptr)) return false;
    if (given && !(look++)->fits(*tensors.given[i])) return false;
  }
  return true;
}

}  // namespace flashsmith
