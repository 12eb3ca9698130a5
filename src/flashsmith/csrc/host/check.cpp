#include "host/check.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numbers>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr int kAlignmentBytes = 16, kElementBytes = 2, kMaxGridYZ = 65535;
constexpr int kBatch = 0, kSequence = 1, kHead = 2, kDim = 3;
constexpr const char *kDimensions[] = {"batch", "sequence", "head"};

std::string shape_of(const TensorView &t) {
  std::ostringstream text;
  text << "(";
  for (int i = 0; i < t.ndim(); i++) text << (i ? ", " : "") << t.size(i);
  text << ")";
  return text.str();
}

// tvm::ffi::DLDataTypeToString throws for complex types.
std::string name_of(DLDataType type) {
  if (type.code == kDLBool) return "bool";
  const char *kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
  // The codes beyond are the layouts of float8 and less.
  return (type.code < std::size(kinds) ? kinds[type.code] : "float") + std::to_string(type.bits);
}

bool is_type(DLDataType type, ScalarType expected) {
  const int code = expected == ScalarType::Half ? kDLFloat : kDLBfloat;
  return type.code == code && type.bits == 16 && type.lanes == 1;
}

void check_type(const char *name, const TensorView &t, const TensorView &q, ScalarType expected) {
  if (!is_type(t.dtype(), ScalarType::Half) && !is_type(t.dtype(), ScalarType::BFloat16)) {
    TVM_FFI_THROW(TypeError) << name << " has dtype " << name_of(t.dtype())
                             << "; supported are float16 and bfloat16";
  }
  if (!is_type(t.dtype(), expected) && is_type(q.dtype(), expected)) {
    TVM_FFI_THROW(TypeError) << name << " has dtype " << name_of(t.dtype()) << ", but q has "
                             << name_of(q.dtype()) << "; q, k, v and o need the same dtype";
  }
  if (!is_type(t.dtype(), expected)) {
    TVM_FFI_THROW(TypeError) << name << " has dtype " << name_of(t.dtype())
                             << ", but the configuration is for "
                             << (expected == ScalarType::Half ? "float16" : "bfloat16")
                             << "; pass a configuration of the tensors' dtype";
  }
}

void check_shape(const char *name, const TensorView &t, const TensorView &q) {
  if (t.ndim() != 4) {
    TVM_FFI_THROW(ValueError) << name << " has " << t.ndim() << " dimensions, shape " << shape_of(t)
                              << "; expected 4: (batch, seq_len, n_heads, d_head)";
  }
  for (int i = 0; i < 4; i++) {
    if (t.size(i) != q.size(i)) {
      TVM_FFI_THROW(ValueError) << name << " has shape " << shape_of(t) << ", but q has "
                                << shape_of(q) << "; q, k, v and o need the same shape";
    }
  }
}

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

// Elements of o must not share memory among themselves: each stride steps over all that the smaller
// ones span. An expanded dimension has stride 0.
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
  if (t_begin > o_begin + extent_of(o_dimensions) * kElementBytes ||
      o_begin > t_begin + extent_of(t_dimensions) * kElementBytes) {
    return false;
  }
  const bool same_strides =
      std::ranges::equal(o_dimensions, t_dimensions, {}, &Dimension::stride, &Dimension::stride);
  return !same_strides || contains_distance(o_dimensions, (t_begin - o_begin) / kElementBytes);
}

// Blocks read q, k and v while others write o, and the kernel says so to the compiler (restrict).
void check_disjoint(const char *name, const TensorView &t, const TensorView &o) {
  if (may_overlap(o, t)) {
    TVM_FFI_THROW(ValueError) << "o shares memory with " << name
                              << ", which is read while o is written; pass another o, or none";
  }
}

void check_sizes(const FlashForwardKernelConfig &config, const TensorView &q) {
  const int64_t seq_len = q.size(kSequence);
  if (q.size(kDim) != config.d_head) {
    TVM_FFI_THROW(ValueError) << "q has d_head " << q.size(kDim)
                              << ", but the configuration is for " << config.d_head
                              << "; pass a configuration of that d_head (64 or 128)";
  }
  if (seq_len % config.B_r != 0 || seq_len % config.B_c != 0) {
    TVM_FFI_THROW(ValueError) << "q has sequence length " << seq_len
                              << ", which must be a multiple of B_r = " << config.B_r
                              << " and of B_c = " << config.B_c
                              << "; pad it, or choose a configuration with smaller blocks";
  }
  if (seq_len > std::numeric_limits<int32_t>::max()) {
    TVM_FFI_THROW(ValueError) << "q has sequence length " << seq_len << "; at most 2^31 - 1";
  }
  for (int i : {kBatch, kHead}) {
    if (q.size(i) > kMaxGridYZ) {
      TVM_FFI_THROW(ValueError) << "q has " << kDimensions[i] << " size " << q.size(i)
                                << "; at most " << kMaxGridYZ << ": split the call";
    }
  }
}

TensorStrides strides_of(const TensorView &t) {
  return {t.stride(kBatch), t.stride(kSequence), t.stride(kHead)};
}

}  // namespace

void check_forward(const RegisteredKernel &kernel, const ForwardTensors &tensors) {
  const auto &[q, k, v, o] = tensors;
  const std::pair<const char *, const TensorView *> named[] = {
      {"q", &q}, {"k", &k}, {"v", &v}, {"o", &o}};
  for (const auto &[name, t] : named) {
    check_type(name, *t, q, kernel.config.dtype);
    check_shape(name, *t, q);
    if (t->device().device_type != q.device().device_type ||
        t->device().device_id != q.device().device_id) {
      TVM_FFI_THROW(ValueError) << name
                                << " is on another device than q; q, k, v and o need the "
                                   "same device";
    }
  }
  check_sizes(kernel.config, q);
  if (q.numel() == 0) return;  // nothing is read or written
  for (const auto &[name, t] : named) check_layout(name, *t);
  check_writable(o);
  for (const auto &[name, t] : named) {
    if (t != &o) check_disjoint(name, *t, o);
  }
}

ForwardKernelArgs forward_args(const RegisteredKernel &kernel, const ForwardTensors &tensors,
                               double softmax_scale) {
  const auto &[q, k, v, o] = tensors;
  const int seq_len = static_cast<int>(q.size(kSequence));
  ForwardKernelArgs args{};
  args.Q = q.data_ptr();
  args.K = k.data_ptr();
  args.V = v.data_ptr();
  args.O = o.data_ptr();
  args.Q_strides = strides_of(q);
  args.K_strides = strides_of(k);
  args.V_strides = strides_of(v);
  args.O_strides = strides_of(o);
  args.seq_len = seq_len;
  args.n_heads = static_cast<int>(q.size(kHead));
  args.n_Q_blocks = seq_len / kernel.config.B_r;
  args.n_KV_blocks = seq_len / kernel.config.B_c;
  args.softmax_scale_log2 = static_cast<float>(softmax_scale * std::numbers::log2e);
  return args;
}

}  // namespace flashsmith
