"""Tensors at addresses that 16-byte accesses cannot reach, at every even offset."""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import (
    ForwardKernelConfig,
    KernelId,
    parse_kernel_name_into_config,
)
from flashsmith.jit import Target
from flashsmith.runtime import find_kernel
from support.sm80_kernels import BASE

ELEMENTS_OF_16_BYTES = 8
PLAIN = parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1")
EACH = pytest.mark.parametrize("cfg", [BASE, PLAIN], ids=["sm80", "sm90"])
NAMES = "qkvo"


def tensor(cfg: ForwardKernelConfig, elements: int) -> torch.Tensor:
    """Returns a tensor that begins ``elements`` elements behind an aligned address."""
    memory = torch.zeros(64 * cfg.d_head + 64, dtype=torch.float16)
    assert memory.data_ptr() % 64 == 0
    return memory[elements:][: 64 * cfg.d_head].view(1, 64, 1, cfg.d_head)


@pytest.mark.parametrize("elements", range(1, ELEMENTS_OF_16_BYTES))
@pytest.mark.parametrize("name", NAMES)
@EACH
def test_refused(cfg: ForwardKernelConfig, name: str, elements: int) -> None:
    kernel = find_kernel(KernelId(cfg), Target.emulator())
    tensors = [tensor(cfg, elements if n == name else 0) for n in NAMES]
    with pytest.raises(ValueError, match=rf"^{name} starts .*\(remainder {2 * elements}\)"):
        kernel(*tensors, 1.0)


@pytest.mark.parametrize("elements", [8, 16, 24, 32])
@EACH
def test_multiples_of_16_bytes_are_taken(cfg: ForwardKernelConfig, elements: int) -> None:
    kernel = find_kernel(KernelId(cfg), Target.emulator())
    q, k, v, o = (tensor(cfg, elements) for _ in NAMES)
    v.fill_(3.0)
    kernel(q, k, v, o, 1.0)
    assert (o == 3.0).all()


@pytest.mark.parametrize("stride", [4, 12, 28])
@pytest.mark.parametrize("dim", [0, 1, 2], ids=["batch", "sequence", "head"])
@pytest.mark.parametrize("name", NAMES)
@EACH
def test_strides_of_half_an_access_are_refused(
    cfg: ForwardKernelConfig, name: str, dim: int, stride: int
) -> None:
    """The stride is a multiple of 16 bytes and 8 more."""
    kernel = find_kernel(KernelId(cfg), Target.emulator())
    tensors = {n: torch.zeros(2, 64, 2, cfg.d_head, dtype=torch.float16) for n in NAMES}
    strides = list(tensors[name].stride())
    strides[dim] += stride
    memory = torch.zeros(2 * 64 * 2 * (cfg.d_head + 128), dtype=torch.float16)
    tensors[name] = memory.as_strided((2, 64, 2, cfg.d_head), strides)
    dimension = ("batch", "sequence", "head")[dim]
    with pytest.raises(ValueError, match=rf"^{name} has {dimension} stride {strides[dim]} "):
        kernel(*tensors.values(), 1.0)
