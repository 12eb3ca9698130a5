"""The host's declarations of the CUDA driver's API are those of the toolkit's cuda.h."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.emulator_program import CXX
from support.paths import CSRC

HEADER = CSRC / "host/driver.h"
CUDA_HOMES = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
CUDA_H = [Path(home) / "include/cuda.h" for home in CUDA_HOMES if home]

# A value of an enumeration of driver.h -> the value of cuda.h.
VALUES = {
    "Result::success": "CUDA_SUCCESS",
    "Result::out_of_memory": "CUDA_ERROR_OUT_OF_MEMORY",
    "Result::not_initialized": "CUDA_ERROR_NOT_INITIALIZED",
    "Result::deinitialized": "CUDA_ERROR_DEINITIALIZED",
    "Result::invalid_context": "CUDA_ERROR_INVALID_CONTEXT",
    "Result::no_binary_for_gpu": "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "Result::not_found": "CUDA_ERROR_NOT_FOUND",
    "DeviceAttribute::multiprocessor_count": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
    "DeviceAttribute::compute_capability_major": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
    "DeviceAttribute::compute_capability_minor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
    "FunctionAttribute::ptx_version": "CU_FUNC_ATTRIBUTE_PTX_VERSION",
    "FunctionAttribute::max_dynamic_shared_size_bytes": (
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    ),
    "CaptureStatus::none": "CU_STREAM_CAPTURE_STATUS_NONE",
    "LaunchAttributeId::cluster_dimension": "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
    "LaunchAttributeId::programmatic_stream_serialization": (
        "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    ),
    "TensorMapDataType::uint8": "CU_TENSOR_MAP_DATA_TYPE_UINT8",
    "TensorMapDataType::float16": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    "TensorMapDataType::bfloat16": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
    "TensorMapInterleave::none": "CU_TENSOR_MAP_INTERLEAVE_NONE",
    "TensorMapSwizzle::none": "CU_TENSOR_MAP_SWIZZLE_NONE",
    "TensorMapSwizzle::bytes_32": "CU_TENSOR_MAP_SWIZZLE_32B",
    "TensorMapSwizzle::bytes_64": "CU_TENSOR_MAP_SWIZZLE_64B",
    "TensorMapSwizzle::bytes_128": "CU_TENSOR_MAP_SWIZZLE_128B",
    "TensorMapPromotion::L2_256B": "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
    "TensorMapFill::none": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
}
TYPES = {
    "Device": "CUdevice",
    "Context": "CUcontext",
    "Stream": "CUstream",
    "Event": "CUevent",
    "Library": "CUlibrary",
    "Kernel": "CUkernel",
    "Result": "CUresult",
    "DeviceAttribute": "CUdevice_attribute",
    "FunctionAttribute": "CUfunction_attribute",
    "CaptureStatus": "CUstreamCaptureStatus",
    "LaunchAttributeId": "CUlaunchAttributeID",
    "LaunchAttribute": "CUlaunchAttribute",
    "LaunchAttribute::Value": "CUlaunchAttributeValue",
    "LaunchConfig": "CUlaunchConfig",
    "TensorMap": "CUtensorMap",
    "TensorMapDataType": "CUtensorMapDataType",
    "TensorMapInterleave": "CUtensorMapInterleave",
    "TensorMapSwizzle": "CUtensorMapSwizzle",
    "TensorMapPromotion": "CUtensorMapL2promotion",
    "TensorMapFill": "CUtensorMapFloatOOBfill",
}
MEMBERS = {
    ("LaunchAttribute", "CUlaunchAttribute"): {"id": "id", "value": "value"},
    ("LaunchAttribute::Value", "CUlaunchAttributeValue"): {
        "cluster.x": "clusterDim.x",
        "cluster.y": "clusterDim.y",
        "cluster.z": "clusterDim.z",
        "programmatic_stream_serialization_allowed": "programmaticStreamSerializationAllowed",
    },
    ("LaunchConfig", "CUlaunchConfig"): {
        "grid_x": "gridDimX",
        "grid_y": "gridDimY",
        "grid_z": "gridDimZ",
        "block_x": "blockDimX",
        "block_y": "blockDimY",
        "block_z": "blockDimZ",
        "shared_memory_bytes": "sharedMemBytes",
        "stream": "hStream",
        "attributes": "attrs",
        "n_attributes": "numAttrs",
    },
}

# Functions are alike if their parameters have the same kinds and sizes. cuda.h renames some by
# macros, which rename the members of Driver, too.
PROGRAM = """\
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "host/driver.h"

namespace ours = flashsmith::driver;

template <typename A, typename B>
constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <typename A, typename B>
struct AreAlike : std::false_type {{}};
template <typename R, typename S, typename... A, typename... B>
  requires(sizeof...(A) == sizeof...(B))
struct AreAlike<R (*)(A...), S (*)(B...)>
    : std::bool_constant<(alike<R, S> && ... && alike<A, B>)> {{}};

{checks}
"""


def checks(names: list[str]) -> str:
    lines = [f"static_assert(static_cast<int>(ours::{o}) == {t});" for o, t in VALUES.items()]
    lines += [f"static_assert(sizeof(ours::{o}) == sizeof({t}));" for o, t in TYPES.items()]
    lines += [f"static_assert(alignof(ours::{o}) >= alignof({t}));" for o, t in TYPES.items()]
    for (our, their), members in MEMBERS.items():
        for o, t in members.items():
            lines.append(f"static_assert(offsetof(ours::{our}, {o}) == offsetof({their}, {t}));")
            lines.append(f"static_assert(sizeof(ours::{our}{{}}.{o}) == sizeof({their}{{}}.{t}));")
    lines += [
        f"static_assert(AreAlike<decltype(ours::Driver::{name}), decltype(&::{name})>::value);"
        for name in names
    ]
    return "\n".join(lines)


def test_declarations_are_those_of_cuda_h(tmp_path: Path) -> None:
    found = [path for path in CUDA_H if path.is_file()]
    if not found:
        pytest.skip(f"needs cuda.h of a CUDA toolkit; looked for {', '.join(map(str, CUDA_H))}")
    names = re.findall(r"^  Result \(\*(\w+)\)", HEADER.read_text(), re.MULTILINE)
    assert len(names) > 20
    source = tmp_path / "driver.cpp"
    source.write_text(PROGRAM.format(checks=checks(names)))
    command = [str(CXX), "-std=c++20", "-fsyntax-only", f"-I{CSRC}", f"-I{found[0].parent}"]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_value_type_and_function_is_compared() -> None:
    text = HEADER.read_text()
    values = {
        f"{enum}::{value}"
        for enum, body in re.findall(r"enum class (\w+) : int \{(.*?)\}", text, re.DOTALL)
        for value in re.findall(r"(\w+) =", body)
    }
    assert values == set(VALUES)
    types = re.findall(
        r"^(?:using|enum class|struct(?: alignas\(128\))?) (\w+)", text, re.MULTILINE
    )
    assert {*types} - {"Driver"} == {name for name in TYPES if "::" not in name}
    found = (CSRC / "host/driver.cpp").read_text()
    declared = re.findall(r"^  Result \(\*(\w+)\)", text, re.MULTILINE)
    assert declared == re.findall(r"FLASHSMITH_FIND\((cu\w+)\)", found)
