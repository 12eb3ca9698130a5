#include "host/tensor_map.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "flashsmith/sm90/arguments.cuh"
#include "host/args/argument.h"
#include "host/driver.h"
#include "host/launch_gpu.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

constexpr int kMaxRank = 5;
constexpr const char *kDimensions[] = {"batch", "sequence", "head"};

int element_bytes(const TensorView &t) { return t.dtype().bits / 8; }

// All values that a map depends on. The contiguous dimension is the first.
struct Description {
  DLDevice device;
  void *base;
  ScalarType type;
  Box box;
  int rank;
  std::array<uint64_t, kMaxRank> sizes, strides;  // strides in bytes

  bool operator==(const Description &other) const {
    return device.device_type == other.device.device_type &&
           device.device_id == other.device.device_id && base == other.base && type == other.type &&
           box == other.box && rank == other.rank && sizes == other.sizes &&
           strides == other.strides;
  }
};

// Returns a stride in bytes. A dimension of size 1 may have any stride, which is never used; maps
// require a multiple of 16.
uint64_t stride_of(const TensorView &t, int dimension) {
  const int64_t stride = t.size(dimension) > 1 ? t.stride(dimension) : t.size(kDim);
  return static_cast<uint64_t>(stride * element_bytes(t));
}

// Puts the head before the sequence for a box of packed heads.
Description in_order_of_box(Description described) {
  if (described.box.packed_heads > 0) {
    std::swap(described.sizes[1], described.sizes[2]);
    std::swap(described.strides[1], described.strides[2]);
  }
  return described;
}

// The dimensions are d_head, sequence, head, batch.
Description describe(const TensorView &t, ScalarType type, const Box &box) {
  constexpr int kOrder[] = {kDim, kSequence, kHead, kBatch};
  Description described{.device = t.device(),
                        .base = t.data_ptr(),
                        .type = type,
                        .box = box,
                        .rank = 4,
                        .sizes = {},
                        .strides = {}};
  for (int i = 0; i < described.rank; i++) {
    described.sizes[i] = static_cast<uint64_t>(t.size(kOrder[i]));
    described.strides[i] = stride_of(t, kOrder[i]);
  }
  described.strides[0] = static_cast<uint64_t>(element_bytes(t));
  return in_order_of_box(described);
}

// The dimensions are d_head, row, head, end, shift (sm90/rows.cuh).
Description describe_varlen(const TensorView &t, ScalarType type, const Box &box) {
  constexpr uint64_t kAnyEnd = uint64_t{1} << 31, kOneShift = kVarlenRows + 1;
  const auto element = static_cast<uint64_t>(element_bytes(t));
  const uint64_t row = static_cast<uint64_t>(row_stride(t)) * element;
  return in_order_of_box({.device = t.device(),
                          .base = t.data_ptr(),
                          .type = type,
                          .box = box,
                          .rank = 5,
                          .sizes = {static_cast<uint64_t>(t.size(kDim)), kVarlenRows,
                                    static_cast<uint64_t>(t.size(kHead)), kAnyEnd, kOneShift},
                          .strides = {element, row, stride_of(t, kHead), row, kVarlenShift - row}});
}

using BoxSizes = std::array<uint32_t, kMaxRank>;

BoxSizes box_sizes(const Box &box) {
  const auto columns = static_cast<uint32_t>(box.columns), rows = static_cast<uint32_t>(box.rows);
  if (box.packed_heads == 0) return {columns, rows, 1, 1, 1};
  return {columns, static_cast<uint32_t>(box.packed_heads), rows, 1, 1};
}

ptx::TensorMap encode_for_emulator(const Description &tensor) {
  if (std::ranges::any_of(tensor.sizes.begin(), tensor.sizes.begin() + tensor.rank,
                          [](uint64_t size) { return size == 0; })) {
    TVM_FFI_THROW(DeviceError) << "cuTensorMapEncodeTiled would refuse a tensor with a size of 0";
  }
  ptx::TensorMap map{};
  map.base = tensor.base;
  map.element_bytes = static_cast<uint32_t>(tensor.strides[0]);
  map.rank = static_cast<uint32_t>(tensor.rank);
  for (int i = 0; i < tensor.rank; i++) {
    map.sizes[i] = tensor.sizes[i];
    map.strides[i] = tensor.strides[i];
    map.box[i] = box_sizes(tensor.box)[i];
  }
  map.swizzle = tensor.box.swizzle;
  return map;
}

driver::TensorMapDataType data_type(ScalarType type) {
  switch (type) {
    case ScalarType::Half:
      return driver::TensorMapDataType::float16;
    case ScalarType::BFloat16:
      return driver::TensorMapDataType::bfloat16;
    default:
      return driver::TensorMapDataType::uint8;  // copies need not know what bytes mean
  }
}

driver::TensorMapSwizzle swizzle_of(const Box &box) {
  switch (box.swizzle) {
    case ptx::Swizzle::bytes_128:
      return driver::TensorMapSwizzle::bytes_128;
    case ptx::Swizzle::bytes_64:
      return driver::TensorMapSwizzle::bytes_64;
    default:
      return driver::TensorMapSwizzle::bytes_32;
  }
}

ptx::TensorMap encode_for_gpu(const Description &tensor) {
  const gpu::DeviceGuard guard(tensor.device.device_id);
  const BoxSizes box = box_sizes(tensor.box);
  const uint32_t element_strides[kMaxRank] = {1, 1, 1, 1, 1};
  driver::TensorMap map{};
  const driver::Result result = driver::driver().cuTensorMapEncodeTiled(
      &map, data_type(tensor.type), static_cast<uint32_t>(tensor.rank), tensor.base,
      tensor.sizes.data(), tensor.strides.data() + 1, box.data(), element_strides,
      driver::TensorMapInterleave::none, swizzle_of(tensor.box),
      driver::TensorMapPromotion::L2_256B, driver::TensorMapFill::none);
  if (result != driver::Result::success) {
    const bool by_head = tensor.box.packed_heads > 0;
    TVM_FFI_THROW(DeviceError) << "cuTensorMapEncodeTiled refused a tensor of (batch, sequence, "
                                  "head) strides of ("
                               << tensor.strides[3] << ", " << tensor.strides[by_head ? 2 : 1]
                               << ", " << tensor.strides[by_head ? 1 : 2]
                               << ") bytes: " << driver::describe(driver::driver(), result);
  }
  return std::bit_cast<ptx::TensorMap>(map);
}

ptx::TensorMap encode(const Description &tensor) {
  return tensor.device.device_type == kDLCUDA ? encode_for_gpu(tensor)
                                              : encode_for_emulator(tensor);
}

// Returns the place of a description's map: neighbouring addresses and shapes get different places.
template <size_t kPlaces>
size_t place_of(const Description &tensor) {
  constexpr uint64_t kMixer = 0x9E3779B97F4A7C15;  // 2^64 / the golden ratio
  uint64_t hash = reinterpret_cast<uintptr_t>(tensor.base) * kMixer;
  for (uint64_t part : {tensor.sizes[1], tensor.sizes[2], tensor.strides[1], tensor.strides[2],
                        static_cast<uint64_t>(tensor.box.rows)}) {
    hash = (hash ^ part) * kMixer;
  }
  return (hash >> 32) % kPlaces;
}

}  // namespace

int64_t row_stride(const TensorView &t) {
  for (int dimension : {kSequence, kBatch}) {
    if (t.size(dimension) > 1) return t.stride(dimension);
  }
  return t.size(kDim);
}

void check_map_strides(const Argument &argument, const TensorView &t) {
  const int64_t maximum = (int64_t{1} << 40) / element_bytes(t);
  for (int i = kBatch; i <= kHead; i++) {
    if (t.size(i) > 1 && (t.stride(i) <= 0 || t.stride(i) >= maximum)) {
      TVM_FFI_THROW(ValueError) << argument.name << " has " << kDimensions[i] << " stride "
                                << t.stride(i) << " elements; the sm90 family takes "
                                << 16 / element_bytes(t) << " to 2^"
                                << (element_bytes(t) == 1 ? 40 : 39)
                                << " (an expanded dimension has 0): call .contiguous()";
    }
  }
}

void check_map_batch_stride(const Argument &argument, const TensorView &t) {
  if (t.size(kBatch) > 1 && t.stride(kBatch) % row_stride(t) != 0) {
    TVM_FFI_THROW(ValueError) << argument.name << " has batch stride " << t.stride(kBatch)
                              << " elements, which is no multiple of its sequence stride "
                              << t.stride(kSequence)
                              << "; with cu_seqlens or seqused the sm90 family needs one: call "
                                 ".contiguous()";
  }
}

void check_map_pages(const Argument &argument, const TensorView &t) {
  if (t.size(kSequence) % kPageRowMultiple != 0) {
    TVM_FFI_THROW(ValueError) << argument.name << " has pages of " << t.size(kSequence)
                              << " rows; the sm90 family reads pages of a multiple of "
                              << kPageRowMultiple << " rows";
  }
}

void check_map_reach(const Argument &argument, const TensorView &t) {
  constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;
  const int64_t rows = t.stride(kBatch) / row_stride(t);
  if (t.size(kBatch) > 1 && t.size(kBatch) > kMaxRows / rows) {
    TVM_FFI_THROW(ValueError) << argument.name << " has " << t.size(kBatch) << " slots or pages, "
                              << rows << " rows apart; the sm90 family takes at most 2^31 - 1 rows";
  }
}

int map_batch_rows(const TensorView &t) {
  return t.size(kBatch) > 1 ? static_cast<int>(t.stride(kBatch) / row_stride(t)) : 0;
}

// A map is a pure function of the description: an old one is as good as a new one, whatever has
// happened to the memory since.
ptx::TensorMap make_tensor_map(const TensorView &tensor, ScalarType type, const Box &box,
                               bool varlen) {
  struct Kept {
    Description description;
    ptx::TensorMap map;
  };
  constexpr size_t kPlaces = 64;
  static thread_local std::vector<Kept> kept(kPlaces);  // a description of zeros fits no tensor
  if (tensor.numel() == 0) return {};  // nothing is copied, and the driver refuses such a tensor
  const Description description =
      varlen ? describe_varlen(tensor, type, box) : describe(tensor, type, box);
  Kept &place = kept[place_of<kPlaces>(description)];
  if (place.description != description) place = {description, encode(description)};
  return place.map;
}

}  // namespace flashsmith
