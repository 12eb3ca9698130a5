#include "host/tensor_map.h"

#include <tvm/ffi/error.h>

#include <cstdint>

#include "host/layout.h"

#ifndef FLASHSMITH_EMULATOR
#include <cuda_runtime_api.h>
#endif

namespace flashsmith {
namespace {

constexpr int kRank = 4;

// The dimensions of a map: d_head, sequence, head, batch; the contiguous one first.
struct Dimensions {
  uint64_t sizes[kRank], strides[kRank];  // strides in bytes
};

Dimensions dimensions_of(const tvm::ffi::TensorView &t) {
  constexpr int kOrder[kRank] = {kDim, kSequence, kHead, kBatch};
  Dimensions dimensions{};
  for (int i = 0; i < kRank; i++) {
    // A dimension of size 1 may have any stride, which is never used; maps want a multiple of 16.
    const int64_t stride = t.size(kOrder[i]) > 1 ? t.stride(kOrder[i]) : t.size(kDim);
    dimensions.sizes[i] = static_cast<uint64_t>(t.size(kOrder[i]));
    dimensions.strides[i] = static_cast<uint64_t>(stride) * kElementBytes;
  }
  dimensions.strides[0] = kElementBytes;
  return dimensions;
}

}  // namespace

#ifdef FLASHSMITH_EMULATOR

ptx::TensorMap make_tensor_map(const tvm::ffi::TensorView &tensor, ScalarType, int box_columns,
                               int box_rows, ptx::Swizzle swizzle) {
  const Dimensions dimensions = dimensions_of(tensor);
  ptx::TensorMap map{};
  map.base = tensor.data_ptr();
  map.element_bytes = kElementBytes;
  map.rank = kRank;
  for (int i = 0; i < kRank; i++) {
    map.sizes[i] = dimensions.sizes[i];
    map.strides[i] = dimensions.strides[i];
    map.box[i] = 1;
  }
  map.box[0] = static_cast<uint32_t>(box_columns);
  map.box[1] = static_cast<uint32_t>(box_rows);
  map.swizzle = swizzle;
  return map;
}

#else

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime: linking the driver's library would tie the package to machines that have it.
Encode find_encode() {
  void *function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kSince = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             kSince, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    TVM_FFI_THROW(DeviceError) << "the CUDA driver has no cuTensorMapEncodeTiled; it needs to be "
                                  "for CUDA 12.0 or newer";
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

ptx::TensorMap make_tensor_map(const tvm::ffi::TensorView &tensor, ScalarType type, int box_columns,
                               int box_rows, ptx::Swizzle swizzle) {
  static const Encode encode = find_encode();
  const Dimensions dimensions = dimensions_of(tensor);
  const cuuint32_t box[kRank] = {static_cast<cuuint32_t>(box_columns),
                                 static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t element_strides[kRank] = {1, 1, 1, 1};
  ptx::TensorMap map;
  const CUresult result = encode(
      &map,
      type == ScalarType::Half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      kRank, tensor.data_ptr(), dimensions.sizes, dimensions.strides + 1, box, element_strides,
      CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle == ptx::Swizzle::bytes_128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    TVM_FFI_THROW(DeviceError) << "cuTensorMapEncodeTiled refused a tensor of (batch, sequence, "
                                  "head) strides ("
                               << tensor.stride(kBatch) << ", " << tensor.stride(kSequence) << ", "
                               << tensor.stride(kHead) << "): error " << result;
  }
  return map;
}

#endif

}  // namespace flashsmith
