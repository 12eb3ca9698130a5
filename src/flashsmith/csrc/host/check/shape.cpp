#include <tvm/ffi/error.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "host/check/check.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

// Returns the name of a size that has to be the same in two tensors.
const char *size_name(Dim dim) { return dim == Dim::batch ? "batch size" : name_of(dim); }

// Returns the size of a dimension, from the first argument that has it.
int64_t size_of(const Tensors &tensors, Dim dim) {
  for (size_t i = 0; i < tensors.size(); i++) {
    const Argument &argument = tensors.table[i];
    for (int d = 0; d < argument.rank(); d++) {
      if (argument.dims[d] == dim && tensors.given[i]) return tensors.given[i]->size(d);
    }
  }
  return 0;
}

// Returns the dimensions whose sizes two arguments of rows share. `varlen`: keys may be packed
// where queries are not, so that batch sizes may differ.
std::vector<int> shared_dims(const Argument &a, const Argument &b, bool varlen) {
  std::vector<int> shared;
  for (int d = 0; d < a.rank(); d++) {
    if (a.dims[d] != b.dims[d]) continue;
    if (varlen && d == kBatch && a.dims[kSequence] != b.dims[kSequence]) continue;
    shared.push_back(d);
  }
  return shared;
}

// Returns names like "batch size, seq_len_k and n_heads_kv".
std::string names_of(const Argument &argument, const std::vector<int> &dims) {
  std::ostringstream text;
  for (size_t i = 0; i < dims.size(); i++) {
    text << (i == 0 ? "" : i + 1 == dims.size() ? " and " : ", ");
    text << size_name(argument.dims[dims[i]]);
  }
  return text.str();
}

// Returns the names and sizes of this call, like "(batch, n_heads) = (2, 4)".
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

void check_shape(const Tensors &tensors, size_t index, bool varlen) {
  const Argument &own = tensors.table[index];
  const TensorView &t = *tensors.given[index];
  size_t differing = index;
  std::vector<int> max_shared;
  for (size_t before = 0; before < index; before++) {
    const TensorView &like = *tensors.given[before];
    std::vector<int> shared = shared_dims(own, tensors.table[before], varlen);
    const bool same = std::ranges::all_of(shared, [&](int d) { return t.size(d) == like.size(d); });
    if (same || shared.size() <= max_shared.size()) continue;
    differing = before;
    max_shared = std::move(shared);
  }
  if (differing == index) return;
  TVM_FFI_THROW(ValueError) << own.name << " has shape " << shape_of(t) << ", but "
                            << tensors.table[differing].name << " has "
                            << shape_of(*tensors.given[differing]) << "; they need the same "
                            << names_of(own, max_shared);
}

void check_broadcast(const Tensors &tensors, const Argument &argument, const TensorView &t) {
  bool fits = t.ndim() == argument.rank();
  for (int d = 0; fits && d < argument.rank(); d++) {
    const bool repeated = t.size(d) == 1 && d + 1 < argument.rank();
    fits = repeated || t.size(d) == size_of(tensors, argument.dims[d]);
  }
  if (!fits) {
    TVM_FFI_THROW(ValueError) << argument.name << " has shape " << shape_of(t)
                              << "; it must broadcast to " << expected_shape(tensors, argument)
                              << ": each size is that, or 1 but for the last";
  }
  const int last = argument.rank() - 1;
  if (t.numel() > 0 && t.size(last) > 1 && t.stride(last) != 1) {
    TVM_FFI_THROW(ValueError) << argument.name << " has stride " << t.stride(last)
                              << " in its last dimension; it must be contiguous there (stride 1): "
                                 "call .contiguous()";
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

void check_fp8_scale(const char *name, const TensorView *t, const char *of, ScalarType type,
                     int64_t batch, int64_t heads) {
  if (!t) return;
  if (type != ScalarType::Float8_e4m3fn) {
    TVM_FFI_THROW(ValueError) << name << " was passed, but " << of << " has 16 bits; pass None";
  }
  const bool is_vector = t->ndim() == 1 && (t->size(0) == 1 || t->size(0) == heads);
  const bool is_matrix = t->ndim() == 2 && t->size(0) == batch && t->size(1) == heads;
  if ((is_vector || is_matrix) && is_contiguous(*t) && is_aligned(*t, sizeof(float))) return;
  TVM_FFI_THROW(ValueError) << name << " has shape " << shape_of(*t)
                            << "; it must be contiguous and of shape (1), (n_heads_kv) = (" << heads
                            << ") or (batch, n_heads_kv) = (" << batch << ", " << heads << ")";
}

}  // namespace flashsmith
