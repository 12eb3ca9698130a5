#include "host/check.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <variant>

#include "host/layout.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr int kMaxGridYZ = 65535;
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

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

void check_rank(const char *name, const TensorView &t) {
  if (t.ndim() != 4) {
    TVM_FFI_THROW(ValueError) << name << " has " << t.ndim() << " dimensions, shape " << shape_of(t)
                              << "; expected 4: (batch, seq_len, n_heads, d_head)";
  }
}

void check_device(const char *name, const TensorView &t, const TensorView &q) {
  if (t.device().device_type != q.device().device_type ||
      t.device().device_id != q.device().device_id) {
    TVM_FFI_THROW(ValueError) << name << " is on another device than q; all tensors need the same "
                              << "device";
  }
}

void check_same_shape(const char *name, const TensorView &t, const char *other_name,
                      const TensorView &other, const char *all) {
  for (int i = 0; i < 4; i++) {
    if (t.size(i) != other.size(i)) {
      TVM_FFI_THROW(ValueError) << name << " has shape " << shape_of(t) << ", but " << other_name
                                << " has " << shape_of(other) << "; " << all
                                << " need the same shape";
    }
  }
}

void check_d_head(int d_head, const char *supported, const TensorView &q) {
  if (q.size(kDim) != d_head) {
    TVM_FFI_THROW(ValueError) << "q has d_head " << q.size(kDim)
                              << ", but the configuration is for " << d_head
                              << "; pass a configuration of that d_head (" << supported << ")";
  }
}

// Kernels count positions as int, to the end of the last block.
void check_length(const char *name, const TensorView &t, int block) {
  if (t.size(kSequence) > kMaxInt / block * block) {
    TVM_FFI_THROW(ValueError) << name << " has sequence length " << t.size(kSequence)
                              << "; at most 2^31 - 1 in whole blocks of " << block;
  }
}

bool is_aligned(const TensorView &t, size_t bytes) {
  return reinterpret_cast<uintptr_t>(t.data_ptr()) % bytes == 0;
}

void check_lse(const TensorView &lse, const TensorView &q) {
  const DLDataType type = lse.dtype();
  if (type.code != kDLFloat || type.bits != 32 || type.lanes != 1) {
    TVM_FFI_THROW(TypeError) << "lse has dtype " << name_of(type) << "; it must be float32";
  }
  if (lse.ndim() != 3 || lse.size(0) != q.size(kBatch) || lse.size(1) != q.size(kHead) ||
      lse.size(2) != q.size(kSequence) || !is_contiguous(lse) || !is_aligned(lse, sizeof(float))) {
    TVM_FFI_THROW(ValueError) << "lse has shape " << shape_of(lse) << "; it must be contiguous, "
                              << "4-byte aligned and of shape (batch, n_heads, seq_len_q) = ("
                              << q.size(kBatch) << ", " << q.size(kHead) << ", "
                              << q.size(kSequence) << ")";
  }
  check_device("lse", lse, q);
}

// ---- what a family takes ----

void check_sizes(const FlashForwardKernelConfig &config, const ForwardTensors &tensors) {
  const TensorView &q = tensors.q;
  constexpr const char *kAll = "q, k, v and o";
  check_same_shape("k", tensors.k, "q", q, kAll);
  check_same_shape("v", tensors.v, "q", q, kAll);
  check_same_shape("o", tensors.o, "q", q, kAll);
  check_d_head(config.d_head, "64 or 128", q);
  const int64_t seq_len = q.size(kSequence);
  if (seq_len % config.B_r != 0 || seq_len % config.B_c != 0) {
    TVM_FFI_THROW(ValueError) << "q has sequence length " << seq_len
                              << ", which must be a multiple of B_r = " << config.B_r
                              << " and of B_c = " << config.B_c
                              << "; pad it, or choose a configuration with smaller blocks";
  }
  check_length("q", q, config.B_r);
  for (int i : {kBatch, kHead}) {
    if (q.size(i) > kMaxGridYZ) {
      TVM_FFI_THROW(ValueError) << "q has " << kDimensions[i] << " size " << q.size(i)
                                << "; at most " << kMaxGridYZ << ": split the call";
    }
  }
  if (tensors.lse) {
    TVM_FFI_THROW(ValueError) << "lse was passed, but the sm80 family gives no log-sum-exp; pass a "
                                 "configuration of the sm90 family, or None";
  }
}

void check_heads(const TensorView &q, const TensorView &k) {
  const int64_t n_heads = q.size(kHead), n_heads_kv = k.size(kHead);
  if (n_heads_kv == 0 ? n_heads != 0 : n_heads % n_heads_kv != 0) {
    TVM_FFI_THROW(ValueError) << "q has " << n_heads << " heads and k has " << n_heads_kv
                              << "; the heads of q must be a multiple of those of k";
  }
}

// Tiles of the output are counted as int.
void check_n_tiles(const TensorView &q, int B_r) {
  const int64_t batch = q.size(kBatch), n_heads = q.size(kHead);
  const int64_t n_Q_blocks = (q.size(kSequence) - 1) / B_r + 1;
  if (batch > kMaxInt || n_heads > kMaxInt || batch * n_heads > kMaxInt / n_Q_blocks) {
    TVM_FFI_THROW(ValueError) << "q has shape " << shape_of(q) << ", which is more than 2^31 - 1 "
                              << "blocks of " << B_r << " rows: split the call";
  }
}

void check_sizes(const Sm90ForwardKernelConfig &config, const ForwardTensors &tensors) {
  const auto &[q, k, v, o, lse, workspace] = tensors;
  check_same_shape("v", v, "k", k, "k and v");
  check_same_shape("o", o, "q", q, "q and o");
  check_d_head(config.d_head, "64, 96, 128, 192 or 256", q);
  for (int i : {kBatch, kDim}) {
    if (k.size(i) != q.size(i)) {
      TVM_FFI_THROW(ValueError) << "k has shape " << shape_of(k) << ", but q has " << shape_of(q)
                                << "; they need the same batch size and d_head";
    }
  }
  check_heads(q, k);
  if (q.numel() > 0 && k.size(kSequence) == 0) {
    TVM_FFI_THROW(ValueError) << "k has sequence length 0; at least 1 is needed";
  }
  // Where the keys end that a block of queries sees is counted from the end of that block.
  const int block = std::max(config.B_r, config.B_c);
  check_length("q", q, block);
  check_length("k", k, block);
  check_n_tiles(q, config.B_r);
  if (lse) check_lse(*lse, q);
}

void check_strides(const FlashForwardKernelConfig &, const ForwardTensors &) {}

// Bulk copies step through memory by positive strides only.
void check_strides(const Sm90ForwardKernelConfig &, const ForwardTensors &tensors) {
  constexpr int64_t kMaxStride = (int64_t{1} << 40) / kElementBytes;
  const auto check = [](const char *name, const TensorView &t) {
    for (int i = kBatch; i <= kHead; i++) {
      if (t.size(i) > 1 && (t.stride(i) <= 0 || t.stride(i) >= kMaxStride)) {
        TVM_FFI_THROW(ValueError) << name << " has " << kDimensions[i] << " stride " << t.stride(i)
                                  << " elements; the sm90 family takes 8 to 2^39 (an expanded "
                                     "dimension has 0): call .contiguous()";
      }
    }
  };
  check("q", tensors.q);
  check("k", tensors.k);
  check("v", tensors.v);
  check("o", tensors.o);
}

// ---- what is written ----

void check_outputs_are_apart(const ForwardTensors &tensors) {
  const auto &[q, k, v, o, lse, workspace] = tensors;
  const std::pair<const char *, const TensorView *> inputs[] = {{"q", &q}, {"k", &k}, {"v", &v}};
  for (const auto &[name, t] : inputs) check_disjoint(name, *t, "read", "o", o);
  if (!lse) return;
  for (const auto &[name, t] : inputs) check_disjoint(name, *t, "read", "lse", *lse);
  check_disjoint("o", o, "written", "lse", *lse);
}

void check_workspace(int needed, const ForwardTensors &tensors) {
  if (needed == 0) {
    if (!tensors.workspace) return;
    TVM_FFI_THROW(ValueError) << "workspace was passed, but this kernel needs none; pass None";
  }
  if (!tensors.workspace) {
    TVM_FFI_THROW(ValueError) << "workspace is None; this kernel needs " << needed
                              << " bytes of zeroed memory on q's device";
  }
  const TensorView &workspace = *tensors.workspace;
  const int64_t bytes = workspace.numel() * workspace.dtype().bits / 8;
  if (bytes < needed || !is_contiguous(workspace) || !is_aligned(workspace, sizeof(uint32_t))) {
    TVM_FFI_THROW(ValueError) << "workspace has " << bytes << " bytes; it must be at least "
                              << needed << ", contiguous and 4-byte aligned";
  }
  check_device("workspace", workspace, tensors.q);
}

}  // namespace

void check_forward(const RegisteredKernel &kernel, const ForwardTensors &tensors) {
  std::visit(
      [&](const auto &registered) {
        const auto &config = registered.config;
        const TensorView &q = tensors.q;
        const std::pair<const char *, const TensorView *> named[] = {
            {"q", &q}, {"k", &tensors.k}, {"v", &tensors.v}, {"o", &tensors.o}};
        for (const auto &[name, t] : named) {
          check_type(name, *t, q, config.dtype);
          check_rank(name, *t);
          check_device(name, *t, q);
        }
        check_sizes(config, tensors);
        if (q.numel() == 0) return;  // nothing is read or written
        for (const auto &[name, t] : named) check_layout(name, *t);
        check_writable(tensors.o);
        check_strides(config, tensors);
        check_outputs_are_apart(tensors);
        check_workspace(workspace_bytes(config), tensors);
      },
      kernel.kernel);
}

}  // namespace flashsmith
