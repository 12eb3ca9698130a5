"""The tensors that a mod reads: which are supported, and their sizes and strides as arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flashsmith.mods.expression import ELEMENTS, MAX_BUFFERS, MAX_DIMENSIONS, Buffer

_MAX_ELEMENTS = 2**31 - 1  # indices are 32-bit integers


def describe(tensor: torch.Tensor) -> Buffer:
    """Returns the expression's description of a tensor. Raises ValueError, in words, if a kernel
    cannot read the tensor."""
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(f"a captured {type(tensor).__name__} has no elements yet")
    element = str(tensor.dtype).removeprefix("torch.")
    words = f"a captured tensor of shape {tuple(tensor.shape)} and dtype {element}"
    if element not in ELEMENTS:
        advice = "; pass it as .to(torch.int32)" if "int" in element else ""
        raise ValueError(f"{words}; supported are {', '.join(ELEMENTS)}{advice}")
    is_functional = torch._is_functional_tensor(tensor)  # functionalize records these
    if is_functional and torch._C._functorch.peek_interpreter_stack() is None:
        raise ValueError(f"{words} is a functional tensor outside of functionalize")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) and not is_functional:
        raise ValueError(f"{words} is inside torch.vmap or another function transform")
    if tensor.is_neg():
        raise ValueError(f"{words} is a lazily negated view; pass it as .resolve_neg()")
    if tensor.layout != torch.strided:
        raise ValueError(f"{words} has layout {tensor.layout}; expected torch.strided (dense)")
    if was_freed(tensor):
        raise ValueError(f"{words} has no memory: its storage has 0 bytes")
    if tensor.dim() > MAX_DIMENSIONS:
        raise ValueError(f"{words}; supported are at most {MAX_DIMENSIONS} dimensions")
    if tensor.numel() == 0:
        raise ValueError(f"{words} has no elements")
    if max(extent(tensor), *tensor.shape, 0) > _MAX_ELEMENTS:
        raise ValueError(f"{words} is too large: indices are 32-bit integers")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{words} requires a gradient; gradients by captured tensors are not computed: call "
            "under torch.no_grad(), or detach it"
        )
    return Buffer(element, tensor.dim())


def was_freed(tensor: torch.Tensor) -> bool:
    """Returns whether a plain tensor has no memory, which torch itself would read."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.numel() == 0:
        return False
    return tensor._is_zerotensor() or tensor.untyped_storage().nbytes() == 0


def check_device(tensor: torch.Tensor, device: torch.device) -> None:
    own = tensor.device
    is_index_known = own.index is not None and device.index is not None
    if own.type != device.type or (is_index_known and own.index != device.index):
        raise ValueError(
            f"a captured tensor of shape {tuple(tensor.shape)} is on device {own}, but it is read "
            f"on {device}; move it there with .to()"
        )


def extent(tensor: torch.Tensor) -> int:
    """Returns the number of elements from the first to the last that the tensor's indices reach."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in sizes)


def check_count(n: int) -> None:
    if n > MAX_BUFFERS:
        raise ValueError(f"this is captured tensor number {n}; at most {MAX_BUFFERS} can be read")


def arguments(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Returns sizes and strides, MAX_DIMENSIONS of each for each tensor, as ModBuffers has
    them."""
    rows: list[int] = []
    for tensor in tensors:
        missing = MAX_DIMENSIONS - tensor.dim()
        rows += [*tensor.shape, *[1] * missing, *tensor.stride(), *[0] * missing]
    return rows
