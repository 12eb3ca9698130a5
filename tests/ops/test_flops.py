"""The FLOP that FlopCounterMode counts for the operators, beside those of torch's attention."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import flashsmith

OPS = torch.ops.flashsmith
CU_Q = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
CU_K = torch.tensor([0, 5, 9, 12], dtype=torch.int32)
D, D_V, HEADS = 16, 8, 4
FORWARD, BACKWARD = D + D_V, 3 * D + 2 * D_V  # two operations each for a score


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def counted(function: Any, *arguments: Any, **keywords: Any) -> int:
    with FlopCounterMode(display=False) as mode:
        function(*arguments, **keywords)
    return mode.get_total_flops()


def dense() -> tuple[torch.Tensor, ...]:
    return random(2, 7, HEADS, D), random(2, 9, 2, D), random(2, 9, 2, D_V)


def packed() -> tuple[torch.Tensor, ...]:
    return random(10, HEADS, D), random(12, 2, D), random(12, 2, D_V)


def test_as_many_as_of_torch_s_own_attention() -> None:
    """The count is that of the matrix products, whatever a mask hides, forward and backward."""
    leaves = [t.transpose(1, 2).requires_grad_() for t in dense()]

    def plain() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            F.scaled_dot_product_attention(*leaves, enable_gqa=True).sum().backward()

    def ours() -> None:
        q, k, v = (t.transpose(1, 2) for t in leaves)
        o, lse = OPS.attention_forward(q, k, v, return_lse=True, causal=True)
        OPS.attention_backward(torch.ones_like(o), None, q, k, v, o, lse, False, False, causal=True)

    # Our backward computes q k^T once more than torch's plain one; so does torch's flash operator.
    again = 2 * 2 * HEADS * 7 * 9 * D
    with torch.no_grad():
        found = counted(ours)
    assert found == counted(plain) + again == 2 * 2 * HEADS * 7 * 9 * (FORWARD + BACKWARD)


LENGTHS: dict[str, tuple[dict[str, Any], int]] = {
    "packed": ({"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}, 3 * 5 + 0 * 4 + 7 * 3),
    "used": (
        {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K, "seqused_k": torch.tensor([2, 4, 1]).int()},
        3 * 2 + 7 * 1,
    ),
    "both used": (
        {
            "cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K,
            "seqused_q": torch.tensor([1, 0, 5]).int(), "seqused_k": torch.tensor([2, 4, 1]).int(),
        },
        1 * 2 + 5 * 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_looked_at(name: str) -> None:
    lengths, scores = LENGTHS[name]
    q, k, v = packed()
    assert counted(OPS.attention_forward, q, k, v, **lengths) == 2 * HEADS * scores * FORWARD
    out = torch.empty(10, HEADS, D_V).half()
    assert (
        counted(OPS.attention_forward_out, q, k, v, out, **lengths) == 2 * HEADS * scores * FORWARD
    )
    o, lse = OPS.attention_forward(q, k, v, return_lse=True, **lengths)
    backward = counted(OPS.attention_backward, o, None, q, k, v, o, lse, False, False, **lengths)
    assert backward == 2 * HEADS * scores * BACKWARD


def test_lengths_of_a_graph_are_the_longest() -> None:
    """torch's own varlen attention counts so too if the lengths are unknown."""
    with FakeTensorMode() as mode:
        q, k, v, cu_q, cu_k = (mode.from_tensor(t) for t in (*packed(), CU_Q, CU_K))
        lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        longest = counted(OPS.attention_forward, q, k, v, **lengths, max_seqlen_q=7, max_seqlen_k=5)
        totals = counted(OPS.attention_forward, q, k, v, **lengths)
        used = mode.from_tensor(torch.tensor([3, 4], dtype=torch.int32))
        dense_q, dense_k, dense_v = (mode.from_tensor(t) for t in dense())
        found = counted(OPS.attention_forward, dense_q, dense_k, dense_v, seqused_k=used)
    assert longest == 2 * HEADS * 3 * 7 * 5 * FORWARD
    assert totals == 2 * HEADS * 3 * 10 * 12 * FORWARD
    assert found == 2 * HEADS * 2 * 7 * 9 * FORWARD


CACHE: dict[str, tuple[dict[str, Any], int]] = {
    "all rows": ({}, 2 * 16),
    "lengths": ({"cache_seqlens": torch.tensor([9, 0]).int()}, 9),
    "padding": (
        {"cache_seqlens": torch.tensor([9, 5]).int(), "cache_leftpad": torch.tensor([2, 5]).int()},
        7,
    ),
    "pages": (
        {"cache_seqlens": torch.tensor([20, 9]).int(),
         "block_table": torch.tensor([[1, 0], [0, 1]]).int()},
        29,
    ),
    "all pages": ({"block_table": torch.tensor([[1, 0], [0, 1]]).int()}, 2 * 32),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHE)
def test_decode(name: str) -> None:
    given, keys = CACHE[name]
    q, k, v = random(2, 3, HEADS, 64), random(2, 16, 2, 64), random(2, 16, 2, 64)
    assert counted(OPS.decode, q, k, v, **given) == 2 * HEADS * 3 * keys * (64 + 64)
    out = torch.empty_like(q)
    assert counted(OPS.decode_out, q, k, v, out, **given) == 2 * HEADS * 3 * keys * 128
    if "cache_seqlens" in given:
        new = random(2, 2, 2, 64)
        found = counted(OPS.decode_append, q, k, v, k_new=new, v_new=new, **given)
        assert found == 2 * HEADS * 3 * (keys + 2 * 2) * 128


def test_an_exported_graph_is_counted() -> None:
    class Layer(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return flashsmith.attention(q, k, v, causal=True)

    layer = torch.export.export(Layer(), dense()).module()
    assert counted(layer, *dense()) == 2 * 2 * HEADS * 7 * 9 * FORWARD


COUNT = """
q = torch.randn(1, 10, 2, 64).half()
with FlopCounterMode(display=False) as mode:
    flashsmith.attention(q, q, q)
    flashsmith.decode(None, q[:, :1], q, q)
found = mode.get_total_flops()
assert found == 2 * 2 * (10 * 10 + 1 * 10) * 128, found
"""
COUNTER = "from torch.utils.flop_counter import FlopCounterMode\n"


@pytest.mark.parametrize(
    "before",
    [
        f"{COUNTER}import flashsmith\n",
        f"import flashsmith\n{COUNTER}",
        f"import flashsmith\nflashsmith.attention\n{COUNTER}",
    ],
)
def test_the_first_call_counts_whichever_is_imported_first(before: str) -> None:
    """The counter copies torch's registry when it begins."""
    done = subprocess.run([sys.executable, "-c", f"import torch\n{before}{COUNT}"])
    assert done.returncode == 0


def test_a_counter_that_began_before_the_import_counts() -> None:
    begin = "with FlopCounterMode(display=False) as mode:\n"
    late = COUNT.replace(begin, f"{begin}    import flashsmith\n")
    done = subprocess.run([sys.executable, "-c", f"import torch\n{COUNTER}{late}"])
    assert late != COUNT and done.returncode == 0
