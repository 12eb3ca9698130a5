#include <tvm/ffi/error.h>

#include <sstream>
#include <string>

#include "host/check/check.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

// What a size is called where two have to be the same.
const char *size_name(Dim dim) { return dim == Dim::batch ? "batch size" : name_of(dim); }

// The size of a dimension, by the first argument that has it.
int64_t size_of(const Tensors &tensors, Dim dim) {
  for (size_t i = 0; i < tensors.size(); i++) {
    const Argument &argument = tensors.table[i];
    for (int d = 0; d < argument.rank(); d++) {
      if (argument.dims[d] == dim && tensors.given[i]) return tensors.given[i]->size(d);
    }
  }
  return 0;
}

// The argument that another is shaped as: the first with the same dimensions, else the first.
size_t model_of(const Tensors &tensors, size_t index) {
  for (size_t i = 0; i < index; i++) {
    if (tensors.table[i].dims == tensors.table[index].dims) return i;
  }
  return 0;
}

// "same shape", or "same batch size and d_head".
std::string shared_sizes(const Argument &a, const Argument &b) {
  if (a.dims == b.dims) return "same shape";
  std::ostringstream text;
  const char *separator = "same ";
  for (int d = 0; d < a.rank(); d++) {
    if (a.dims[d] != b.dims[d]) continue;
    text << separator << size_name(a.dims[d]);
    separator = " and ";
  }
  return text.str();
}

// The tuple of names, and what they are in this call: "(batch, n_heads) = (2, 4)".
std::string expected_shape(const Tensors &tensors, const Argument &argument) {
  std::ostringstream names, sizes;
  for (int d = 0; d < argument.rank(); d++) {
    const char *separator = d ? ", " : "";
    names << separator << name_of(argument.dims[d]);
    sizes << separator << size_of(tensors, argument.dims[d]);
  }
  return "(" + names.str() + ") = (" + sizes.str() + ")";
}

bool has_expected_shape(const Tensors &tensors, const Argument &argument, const TensorView &t) {
  if (t.ndim() != argument.rank()) return false;
  for (int d = 0; d < argument.rank(); d++) {
    if (t.size(d) != size_of(tensors, argument.dims[d])) return false;
  }
  return true;
}

}  // namespace

std::string shape_of(const TensorView &t) {
  std::ostringstream text;
  text << "(";
  for (int i = 0; i < t.ndim(); i++) text << (i ? ", " : "") << t.size(i);
  text << ")";
  return text.str();
}

void check_rank(const Argument &argument, const TensorView &t) {
  if (t.ndim() != argument.rank()) {
    TVM_FFI_THROW(ValueError) << argument.name << " has " << t.ndim() << " dimensions, shape "
                              << shape_of(t) << "; expected " << argument.rank()
                              << ": (batch, seq_len, n_heads, d_head)";
  }
}

void check_device(const Tensors &tensors, const Argument &argument, const TensorView &t) {
  const DLDevice device = t.device(), first = tensors.given[0]->device();
  if (device.device_type != first.device_type || device.device_id != first.device_id) {
    TVM_FFI_THROW(ValueError) << argument.name << " is on another device than "
                              << tensors.table[0].name << "; all tensors need the same device";
  }
}

void check_shape(const Tensors &tensors, size_t index) {
  const size_t model = model_of(tensors, index);
  const Argument &own = tensors.table[index], &other = tensors.table[model];
  const TensorView &t = *tensors.given[index], &like = *tensors.given[model];
  for (int d = 0; d < own.rank(); d++) {
    if (own.dims[d] != other.dims[d] || t.size(d) == like.size(d)) continue;
    TVM_FFI_THROW(ValueError) << own.name << " has shape " << shape_of(t) << ", but " << other.name
                              << " has " << shape_of(like) << "; they need the "
                              << shared_sizes(own, other);
  }
}

void check_contiguous_argument(const Tensors &tensors, const Argument &argument,
                               const TensorView &t) {
  const size_t alignment = t.dtype().bits / 8;
  if (!has_expected_shape(tensors, argument, t) || !is_contiguous(t) || !is_aligned(t, alignment)) {
    TVM_FFI_THROW(ValueError) << argument.name << " has shape " << shape_of(t)
                              << "; it must be contiguous, " << alignment
                              << "-byte aligned and of shape " << expected_shape(tensors, argument);
  }
}

}  // namespace flashsmith
