"""The element types of Q, K, V and O."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ELEMENT_BYTES = 2  # of every type below


class DType(IntEnum):
    """Element types, numbered as torch's c10::ScalarType, so that a demangled kernel name has the
    same numbers."""

    FP16 = 5
    BF16 = 15

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls, text: str) -> DType:
        """Returns the type called `text`: its name in any case ("fp16") or its number ("5").

        Raises:
            ValueError: no type has this name or number.
        """
        wanted = text.strip().upper()
        for dtype in cls:
            if wanted in (dtype.name, str(dtype.value)):
                return dtype
        valid = ", ".join(dtype.name.lower() for dtype in cls)
        raise ValueError(f"dtype {text!r} is not known; supported: {valid}")

    def to_cpp_str(self) -> str:
        """Returns the C++ enumerator, `ScalarType::Half` for FP16."""
        return _CPP_NAMES[self]

    def to_torch_dtype(self) -> torch.dtype:
        """Returns `torch.float16` or `torch.bfloat16`; imports torch."""
        import torch

        return {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}[self]


_CPP_NAMES = {DType.FP16: "ScalarType::Half", DType.BF16: "ScalarType::BFloat16"}
