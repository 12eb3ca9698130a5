#include <tvm/ffi/error.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "host/check/check.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

int64_t element_bytes(const TensorView &t) { return t.dtype().bits / 8; }

// The addresses from a tensor's first byte to behind its last; empty if it has no elements.
struct AddressRange {
  intptr_t begin = 0, end = 0;

  bool meets(const AddressRange &other) const { return begin < other.end && other.begin < end; }
};

AddressRange range_of(const TensorView &t) {
  const int64_t *sizes = t.shape().data(), *strides = t.strides().data();
  int64_t first = 0, last = 0;
  for (int i = 0; i < t.ndim(); i++) {
    if (sizes[i] == 0) return {};
    const int64_t extent = (sizes[i] - 1) * strides[i];
    (extent < 0 ? first : last) += extent;
  }
  const auto base = reinterpret_cast<intptr_t>(t.data_ptr());
  return {base + first * element_bytes(t), base + (last + 1) * element_bytes(t)};
}

struct Dimension {
  int64_t size, stride;
  int64_t extent() const { return (size - 1) * stride; }
};

// Returns the dimensions that move the address, in descending order of strides.
std::vector<Dimension> by_stride(const TensorView &t) {
  std::vector<Dimension> dimensions;
  for (int i = 0; i < t.ndim(); i++) {
    if (t.size(i) > 1) dimensions.push_back({t.size(i), t.stride(i)});
  }
  std::ranges::sort(dimensions, std::greater(), &Dimension::stride);
  return dimensions;
}

// Returns the distance in elements from the first to the last.
int64_t extent_of(std::span<const Dimension> dimensions) {
  int64_t extent = 0;
  for (const Dimension &d : dimensions) extent += d.extent();
  return extent;
}

// Returns the first dimension whose stride does not step over the extent of the smaller ones, or
// null. An expanded dimension has stride 0.
const Dimension *crossing(std::span<const Dimension> dimensions) {
  for (size_t i = 0; i < dimensions.size(); i++) {
    if (dimensions[i].stride <= extent_of(dimensions.subspan(i + 1))) return &dimensions[i];
  }
  return nullptr;
}

// Returns whether an element of `a` is one of `b`, which begins `distance` elements later. Both
// have the same strides, none of which crosses the others.
bool meet(std::span<const Dimension> a, std::span<const Dimension> b, int64_t distance) {
  if (a.empty()) return distance == 0;
  const auto smaller_a = a.subspan(1), smaller_b = b.subspan(1);
  const int64_t nearest = distance / a.front().stride;  // the rest is less than one stride
  for (int64_t steps = nearest - 1; steps <= nearest + 1; steps++) {
    const int64_t rest = distance - steps * a.front().stride;
    if (steps < a.front().size && -steps < b.front().size && rest <= extent_of(smaller_a) &&
        -rest <= extent_of(smaller_b) && meet(smaller_a, smaller_b, rest)) {
      return true;
    }
  }
  return false;
}

// Returns whether tensors whose address ranges meet may share elements. It can be false only for
// slices of one packed tensor (equal strides).
bool may_share_elements(const TensorView &a, const TensorView &b) {
  const std::vector<Dimension> of_a = by_stride(a), of_b = by_stride(b);
  const int64_t distance =
      reinterpret_cast<intptr_t>(b.data_ptr()) - reinterpret_cast<intptr_t>(a.data_ptr());
  const bool comparable =
      element_bytes(a) == element_bytes(b) && !crossing(of_a) && !crossing(of_b) &&
      std::ranges::equal(of_a, of_b, {}, &Dimension::stride, &Dimension::stride);
  return !comparable || meet(of_a, of_b, distance / element_bytes(a));
}

[[noreturn]] void throw_shared(const Argument &written, const Argument &other) {
  const char *use = other.use == Use::read ? "read" : "written";
  const char *or_none = written.use == Use::written ? ", or none" : "";
  TVM_FFI_THROW(ValueError) << written.name << " shares memory with " << other.name << ", which is "
                            << use << " while " << written.name << " is written; pass another "
                            << written.name << or_none;
  __builtin_unreachable();
}

// Tensors without memory of their own (fake tensors, wrappers of function transforms, freed
// storages) have sizes, but a null pointer.
void check_has_memory(const Argument &argument, const TensorView &t, const AddressRange &range) {
  if (t.data_ptr() || range.begin == range.end) return;
  TVM_FFI_THROW(ValueError) << argument.name << " has no memory (its data pointer is null); pass a "
                            << "tensor that holds numbers, not a fake tensor, a wrapper of a "
                            << "function transform, or one whose storage was freed";
}

}  // namespace

void check_writable(const Argument &argument, const TensorView &t) {
  const std::vector<Dimension> dimensions = by_stride(t);
  if (const Dimension *dimension = crossing(dimensions)) {
    TVM_FFI_THROW(ValueError) << argument.name << " has a dimension of size " << dimension->size
                              << " with stride " << dimension->stride
                              << ": several of its elements share memory; pass a tensor that was "
                                 "not expanded";
  }
}

void check_apart(const Tensors &tensors) {
  std::array<AddressRange, kMaxTensors> ranges;
  for (size_t i = 0; i < tensors.size(); i++) {
    if (!tensors.given[i]) continue;
    ranges[i] = range_of(*tensors.given[i]);
    check_has_memory(tensors.table[i], *tensors.given[i], ranges[i]);
    for (size_t before = 0; before < i; before++) {
      const Argument &later = tensors.table[i], &earlier = tensors.table[before];
      if (later.use == Use::read && earlier.use == Use::read) continue;
      if (ranges[i].meets(ranges[before]) &&
          may_share_elements(*tensors.given[i], *tensors.given[before])) {
        if (later.use == Use::read) throw_shared(earlier, later);
        throw_shared(later, earlier);
      }
    }
  }
}

}  // namespace flashsmith
