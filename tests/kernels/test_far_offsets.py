"""Elements that are further apart than 32 bits can count, in every dimension and within one tile.

The memory is reserved but never touched, apart from the pages that hold elements.
"""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import ForwardKernelConfig, KernelId, Variant
from flashsmith.runtime import CallArgs, Kernel
from support import sm80_kernels, sm90_kernels
from support.emulator_program import CXX, Run
from support.far import interleaved
from support.problems import TORCH_DTYPES, Emulated, Tensors
from support.problems import run as run_kernel
from support.semantics import offsets

INT = 1 << 31
KERNELS = {
    "sm80": sm80_kernels.BASE,
    "sm80, Q in registers": sm80_kernels.LAST,
    "sm80, synchronous": sm80_kernels.VARIED[0],
    "sm90, bulk stores": sm90_kernels.LAST,
    "sm90, stores from registers": sm90_kernels.PROGRESSION[0],
    "sm90, cluster": sm90_kernels.VARIED[9],
    "sm90, narrow": sm90_kernels.VARIED[3],
}


def far_tensors(cfg: ForwardKernelConfig, shape: list[int], dim: int, far: int) -> Tensors:
    """Returns q, k, v and o, with stride ``far`` along ``dim``."""
    tensors = interleaved(4, shape, dim, far, TORCH_DTYPES[cfg.dtype])
    for t in tensors[:3]:
        t.copy_(torch.randn(shape))
    return tuple(tensors)


def assert_far_as_near(kernel: Kernel, shape: list[int], dim: int, far: int) -> None:
    q, k, v, o = far_tensors(kernel.instance.config, shape, dim, far)
    near = q.contiguous(), k.contiguous(), v.contiguous()
    assert torch.equal(run_kernel(kernel, (q, k, v), o=o), run_kernel(kernel, near))


@pytest.fixture
def kernel(cfg: ForwardKernelConfig, emulated: Emulated) -> Kernel:
    return emulated(KernelId(cfg))


EACH = pytest.mark.parametrize("cfg", KERNELS.values(), ids=KERNELS.keys())


@pytest.mark.parametrize("far", [INT // 8, INT // 32 + 8, INT + 8], ids=["8", "32", "1"])
@EACH
def test_rows_of_one_tile(cfg: ForwardKernelConfig, far: int, kernel: Kernel) -> None:
    """The product of a row and its stride passes 2^31 within the rows of a warp, within those of a
    tile, from a tile to the next, and from a block of keys to the one before."""
    assert_far_as_near(kernel, [1, 256, 1, cfg.d_head], 1, far)


@pytest.mark.parametrize("far", [INT // 2, INT + 8], ids=["2", "1"])
@pytest.mark.parametrize("dim", [0, 2], ids=["batch", "head"])
@EACH
def test_batches_and_heads(cfg: ForwardKernelConfig, dim: int, far: int, kernel: Kernel) -> None:
    shape = [1, 128, 1, cfg.d_head]
    shape[dim] = 3
    assert_far_as_near(kernel, shape, dim, far)


PACKED = ("sm80", "sm90, bulk stores")


@pytest.mark.parametrize("far", [INT // 16, INT // 2 + 8, INT + 8], ids=["16", "2", "1"])
@pytest.mark.parametrize("name", PACKED)
def test_packed_rows(name: str, far: int, emulated: Emulated) -> None:
    """A row is reached from the end of its sequence by the sm90 family's maps of packed tensors."""
    cfg, lengths = KERNELS[name], [20, 9, 35]
    shape = [1, sum(lengths), 2, cfg.d_head]
    q, k, v, o = (t[0] for t in far_tensors(cfg, shape, 1, far))
    near = [t.contiguous() for t in (q, k, v)]
    kernel = emulated(KernelId(cfg, Variant(varlen=True)))
    cu_seqlens = offsets(lengths)
    extras = CallArgs(cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)
    expected = torch.empty_like(near[0])
    for given in ((q, k, v, o), (*near, expected)):
        n_bytes = kernel.plan(*given, extras=extras).workspace_bytes
        workspace = torch.zeros(n_bytes, dtype=torch.uint8) if n_bytes else None
        kernel(*given, 0.1, workspace=workspace, extras=extras)
    assert expected.isfinite().all()
    assert torch.equal(o, expected)


@pytest.mark.skipif(CXX is None, reason="needs a C++20 compiler (set CXX)")
def test_log_sum_exp_beyond_int(run: Run) -> None:
    """The case runs one warp alone, because a launch would compute all 2^31 rows before."""
    assert run("sm90_far_lse") == [1] * 16 + [0] * 16
