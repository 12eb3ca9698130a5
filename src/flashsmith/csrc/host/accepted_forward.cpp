#include "host/accepted_forward.h"

#include <algorithm>

#include "host/check/check.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr uintptr_t kWidestAccess = 16;  // bytes: more alignment than this makes no difference

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

AcceptedForward::AcceptedForward(const ForwardKernel &kernel, const ForwardTensors &tensors,
                                 const ForwardNumbers &numbers)
    : kernel_(kernel),
      max_seqlen_q_(numbers.max_seqlen_q),
      problem_(check_problem(kernel, tensors, numbers)) {
  take_look(tensors);
  if (problem_.is_empty()) return;
  const DLDevice device = tensors.q().device();
  plan_ = kernel.plan(problem_, multiprocessors_of(device));
  check_memory(kernel, tensors, plan_);
  prepare(kernel.gpus, plan_, device);
  stream_ = current_stream(device);
}

bool AcceptedForward::fits(const ForwardTensors &tensors, const ForwardNumbers &numbers) const {
  if (numbers.max_seqlen_q != max_seqlen_q_ || !looks_like(tensors.all())) return false;
  return plan_.zeroed_bytes == 0 ||
         (current_stream(tensors.q().device()) == stream_ && !is_capturing(stream_));
}

double AcceptedForward::run(const ForwardTensors &tensors, const ForwardNumbers &numbers,
                            bool timed) const {
  if (problem_.is_empty()) return 0;
  check_apart(tensors.all());
  check_numbers(kernel_, numbers);
  check_key_ranges(tensors, numbers);
  return launch(plan_, kernel_.arguments(tensors, problem_, numbers), tensors.all(), timed);
}

void AcceptedForward::take_look(const ForwardTensors &tensors) {
  const Tensors all = tensors.all();
  static_assert(kForwardArguments.size() <= 32, "a bit for each");
  for (size_t i = 0; i < all.size(); i++) {
    if (!all.given[i]) continue;
    given_ |= uint32_t{1} << i;
    looks_.push_back(look_at(*all.given[i]));
  }
}

bool AcceptedForward::looks_like(const Tensors &tensors) const {
  auto look = looks_.begin();
  for (size_t i = 0; i < tensors.size(); i++) {
    const bool given = (given_ >> i) & 1;
    if (given != (tensors.given[i] != nullptr)) return false;
    if (given && !(look++)->fits(*tensors.given[i])) return false;
  }
  return true;
}

}  // namespace flashsmith
