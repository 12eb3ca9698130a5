#include "host/layout.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>
#include <vector>

namespace flashsmith {

using tvm::ffi::TensorView;

void check_layout(const char *name, const TensorView &t) {
  if (t.size(kDim) > 1 && t.stride(kDim) != 1) {
    TVM_FFI_THROW(ValueError) << name << " has stride " << t.stride(kDim)
                              << " in its last dimension; it must be contiguous there (stride 1): "
                                 "call .contiguous()";
  }
  const auto address = reinterpret_cast<uintptr_t>(t.data_ptr());
  if (address % kAlignmentBytes != 0) {
    TVM_FFI_THROW(ValueError) << name << " starts at an address that is not a multiple of "
                              << kAlignmentBytes << " bytes (remainder "
                              << address % kAlignmentBytes << "); call .clone()";
  }
  for (int i = kBatch; i <= kHead; i++) {
    if (t.size(i) > 1 && t.stride(i) * kElementBytes % kAlignmentBytes != 0) {
      TVM_FFI_THROW(ValueError) << name << " has " << kDimensions[i] << " stride " << t.stride(i)
                                << " elements; strides of batch, sequence and head must be "
                                   "multiples of 8 elements (16 bytes): call .contiguous()";
    }
  }
}

namespace {

struct Dimension {
  int64_t size, stride;
  int64_t extent() const { return (size - 1) * stride; }
};

// The dimensions that move the address, from the largest stride down.
std::vector<Dimension> by_stride(const TensorView &t) {
  std::vector<Dimension> dimensions;
  for (int i = 0; i < t.ndim(); i++) {
    if (t.size(i) > 1) dimensions.push_back({t.size(i), t.stride(i)});
  }
  std::ranges::sort(dimensions, std::greater(), &Dimension::stride);
  return dimensions;
}

// Elements from the first to the last.
int64_t extent_of(std::span<const Dimension> dimensions) {
  int64_t extent = 0;
  for (const Dimension &d : dimensions) extent += d.extent();
  return extent;
}

}  // namespace

// Each stride must step over all that the smaller ones span. An expanded dimension has stride 0.
void check_writable(const TensorView &o) {
  const std::vector<Dimension> dimensions = by_stride(o);
  for (size_t i = 0; i < dimensions.size(); i++) {
    if (dimensions[i].stride <= extent_of(std::span(dimensions).subspan(i + 1))) {
      TVM_FFI_THROW(ValueError) << "o has a dimension of size " << dimensions[i].size
                                << " with stride " << dimensions[i].stride
                                << ": several of its elements share memory; pass a tensor that was "
                                   "not expanded";
    }
  }
}

namespace {

// Whether two elements of one such tensor can lie `distance` elements apart.
bool contains_distance(std::span<const Dimension> dimensions, int64_t distance) {
  if (dimensions.empty()) return distance == 0;
  const Dimension &largest = dimensions.front();
  const auto smaller = dimensions.subspan(1);
  const int64_t nearest = distance / largest.stride;  // the rest is less than one stride
  for (int64_t steps = nearest - 1; steps <= nearest + 1; steps++) {
    const int64_t rest = distance - steps * largest.stride;
    if (std::abs(steps) < largest.size && std::abs(rest) <= extent_of(smaller) &&
        contains_distance(smaller, rest)) {
      return true;
    }
  }
  return false;
}

// False only if no element is in both, which is known of tensors whose address ranges are apart and
// of slices of one packed tensor (equal strides).
bool may_overlap(const TensorView &o, const TensorView &t) {
  const std::vector<Dimension> o_dimensions = by_stride(o), t_dimensions = by_stride(t);
  const auto o_begin = reinterpret_cast<intptr_t>(o.data_ptr());
  const auto t_begin = reinterpret_cast<intptr_t>(t.data_ptr());
  const auto bytes = [](const TensorView &x) { return x.dtype().bits / 8; };
  if (t_begin > o_begin + extent_of(o_dimensions) * bytes(o) ||
      o_begin > t_begin + extent_of(t_dimensions) * bytes(t)) {
    return false;
  }
  const bool same_strides =
      bytes(o) == bytes(t) &&
      std::ranges::equal(o_dimensions, t_dimensions, {}, &Dimension::stride, &Dimension::stride);
  return !same_strides || contains_distance(o_dimensions, (t_begin - o_begin) / bytes(o));
}

}  // namespace

void check_disjoint(const char *name, const TensorView &t, const char *use,
                    const char *written_name, const TensorView &written) {
  if (may_overlap(written, t)) {
    TVM_FFI_THROW(ValueError) << written_name << " shares memory with " << name << ", which is "
                              << use << " while " << written_name << " is written; pass another "
                              << written_name << ", or none";
  }
}

bool is_contiguous(const TensorView &t) {
  if (t.numel() == 0) return true;
  int64_t stride = 1;
  for (int i = t.ndim() - 1; i >= 0; i--) {
    if (t.size(i) > 1 && t.stride(i) != stride) return false;
    stride *= t.size(i);
  }
  return true;
}

}  // namespace flashsmith
