"""The tensors that share memory with an output, decided to the element, also with far strides."""

from __future__ import annotations

import mmap

import pytest
import torch

from flashsmith.configs import KernelId, parse_kernel_name_into_config
from flashsmith.runtime import Kernel
from support.problems import Emulated

KERNELS = {
    "sm80": parse_kernel_name_into_config("(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"),
    "sm90": parse_kernel_name_into_config("(FP16, 64, 64, 64, 1): wgmma+stages_1"),
}
SHAPE = (2, 6, 2, 64)
ROW = 2 * 64  # elements
SIZE = 2 * 6 * ROW
CHUNK = 8  # elements of 16 bytes
MAP_NORESERVE = 0x4000  # Linux reserves no memory


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, emulated: Emulated) -> Kernel:
    return emulated(KernelId(KERNELS[request.param]))


def launch(
    kernel: Kernel, q: torch.Tensor, o: torch.Tensor, lse: torch.Tensor | None = None
) -> None:
    kernel(q, q.clone(), q.clone(), o, 1.0, lse=lse)


def assert_refused(
    kernel: Kernel, q: torch.Tensor, o: torch.Tensor, lse: torch.Tensor | None = None
) -> None:
    written = "o" if lse is None else "lse"
    with pytest.raises(ValueError, match=f"^{written} shares memory with q"):
        launch(kernel, q, o, lse)


def test_one_row_and_one_head_apart_either_way(kernel: Kernel) -> None:
    memory = torch.zeros(2, 7, 3, 64, dtype=torch.float16)
    later_row, later_head = memory[:, 1:, :2], memory[:, :6, 1:]
    assert_refused(kernel, later_row, later_head)
    assert_refused(kernel, later_head, later_row)


@pytest.mark.parametrize("rows", [1, 2, 5, -1, -5])
def test_some_rows_apart(rows: int, kernel: Kernel) -> None:
    memory = torch.zeros(2, 6 + abs(rows), 2, 64, dtype=torch.float16)
    late, early = memory[:, abs(rows) :], memory[:, :6]
    assert_refused(kernel, *((late, early) if rows > 0 else (early, late)))


def test_in_the_gaps_of_each_other(kernel: Kernel) -> None:
    """The tensors are heads of one tensor, columns of one row, or alternating rows."""
    heads = torch.randn(2, 6, 4, 64).half()
    columns = torch.randn(2, 6, 2, 128).half()
    rows = torch.randn(2, 12, 2, 64).half()
    for a, b in (
        (heads[:, :, :2], heads[:, :, 2:]),
        (heads[:, :, ::2], heads[:, :, 1::2]),
        (columns[..., :64], columns[..., 64:]),
        (rows[:, ::2], rows[:, 1::2]),
    ):
        launch(kernel, a, b)
        launch(kernel, b, a)


@pytest.mark.parametrize("first_row_of_o", [0, 8, 13])
def test_o_in_the_midst_of_longer_keys(first_row_of_o: int, kernel: Kernel) -> None:
    """All strides are equal; o begins further behind k than o has rows, and k reaches to there."""
    memory = torch.zeros(2, 20, 2, 64, dtype=torch.float16)
    q, o = torch.zeros(SHAPE).half(), memory[:, first_row_of_o:][:, :6]
    for k, v, name in ((memory, memory.clone(), "k"), (memory.clone(), memory, "v")):
        with pytest.raises(ValueError, match=f"^o shares memory with {name}"):
            kernel(q, k, v, o, 1.0)


def test_o_behind_longer_keys(kernel: Kernel) -> None:
    memory = torch.zeros(2, 20, 2, 64, dtype=torch.float16)
    k, o = memory[:, :14], memory[:, 14:]
    kernel(torch.zeros(SHAPE).half(), k, k, o, 1.0)


@pytest.mark.parametrize("order", [1, -1], ids=["q first", "o first"])
def test_address_ranges_that_touch(order: int, kernel: Kernel) -> None:
    """The strides differ, since o has heads before rows. The ranges may touch, but not overlap."""

    def tensors(gap: int) -> tuple[torch.Tensor, torch.Tensor]:
        memory = torch.zeros(2 * SIZE + CHUNK, dtype=torch.float16)
        first, second = memory[:SIZE], memory[SIZE + gap :][:SIZE]
        q, o = (first, second) if order == 1 else (second, first)
        return q.view(SHAPE), o.view(2, 2, 6, 64).transpose(1, 2)

    launch(kernel, *tensors(0))
    assert_refused(kernel, *tensors(-CHUNK))


def test_last_float_of_lse_where_q_begins(kernel: Kernel) -> None:
    elements = 2 * 2 * 6
    memory = torch.zeros(SIZE + 2 * elements + CHUNK, dtype=torch.float16)
    q = memory[2 * elements + CHUNK :].view(SHAPE)  # a multiple of 16 bytes from the start
    floats = memory[: 2 * elements + CHUNK + 2].view(torch.float32)
    o = torch.zeros(SHAPE).half()
    apart, touching = floats[4:][:elements], floats[5:][:elements]
    assert apart.data_ptr() + 4 * elements == q.data_ptr()
    launch(kernel, q, o, apart.view(2, 2, 6))
    assert_refused(kernel, q, o, touching.view(2, 2, 6))


@pytest.mark.parametrize("far", [(1 << 31) + 8, (1 << 32) + 8])
@pytest.mark.parametrize("dim", [0, 1, 2], ids=["batch", "sequence", "head"])
def test_far_strides(dim: int, far: int, kernel: Kernel) -> None:
    """o is q moved by one far stride, so that 32-bit offsets would not see that they meet."""
    size, memory_size = SHAPE[dim], 2 * (far * SHAPE[dim] + SIZE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = torch.frombuffer(mmap.mmap(-1, memory_size, flags=flags), dtype=torch.float16)
    strides = list(torch.empty(SHAPE).stride())
    strides[dim] = far
    q, o = memory.as_strided(SHAPE, strides), memory[far:].as_strided(SHAPE, strides)
    assert q.select(dim, size - 1).data_ptr() == o.select(dim, size - 2).data_ptr()
    assert_refused(kernel, q, o)
    assert_refused(kernel, o, q)
