"""Functions of other libraries accept tensors of any strides: a layout that kernels cannot read is
copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import flashsmith
import flashsmith.flash_attn as flash
from flashsmith.configs import KernelId, Variant
from flashsmith.flash_attn import flash_attn_interface
from flashsmith.integrations import torch_sdpa
from flashsmith.jit import Target
from flashsmith.runtime import load_kernels
from flashsmith.selection.select import select_config
from support.decoding import PLAIN, in_pages, requests
from support.layouts import LAYOUTS, with_gaps


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    config = select_config(torch.zeros(1, 9, 2, 64).half())
    names = ("padded", "varlen+padded")
    load_kernels([KernelId(config, Variant.from_name(name)) for name in names], Target.emulator())


ATEN = torch.ops.aten
ENDS = torch.tensor([0, 3, 7]).int(), torch.tensor([0, 5, 9]).int()
DENSE = (2, 7, 4), (2, 9, 2)  # shapes of q, and of k and v
FUNCTIONS: dict[str, tuple[Callable[..., Any], Any]] = {
    "scaled_dot_product_attention": (
        lambda q, k, v: flashsmith.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        ((2, 4, 7), (2, 2, 9)),
    ),
    "flex_attention": (
        lambda q, k, v: flashsmith.flex_attention(q, k, v, enable_gqa=True),
        ((2, 4, 7), (2, 2, 9)),
    ),
    "flash_attn_func": (flash.flash_attn_func, DENSE),
    "flash_attn_varlen_func": (
        lambda q, k, v: flash.flash_attn_varlen_func(q, k, v, *ENDS, 4, 5),
        ((7, 4), (9, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("d_head", [16, 20])
def test_a_result_does_not_depend_on_strides(name: str, layout: str, d_head: int) -> None:
    function, (of_q, of_k) = FUNCTIONS[name]
    given = [torch.randn(*shape, d_head).half() for shape in (of_q, of_k, of_k)]
    expected = function(*given)
    for changed in range(3):
        laid = [LAYOUTS[layout](t) if i == changed else t for i, t in enumerate(given)]
        assert laid[changed].stride() != given[changed].stride() or "first element" in layout
        assert torch.equal(function(*laid), expected)
    assert torch.equal(function(*map(LAYOUTS[layout], given)), expected)


def test_gradients_have_the_shapes_of_what_was_copied() -> None:
    given = [torch.randn(2, 4, 7, 16).half() for _ in range(3)]
    found = []
    for layout in (lambda t: t, with_gaps):
        leaves = [layout(t).detach().requires_grad_() for t in given]
        o = flashsmith.scaled_dot_product_attention(*leaves)
        found.append(torch.autograd.grad(o.float().square().sum(), leaves))
    for plain, of_gaps in zip(*found, strict=True):
        assert torch.equal(plain, of_gaps)


@pytest.fixture
def overridden() -> Iterator[None]:
    override = torch_sdpa.override("CPU")
    yield
    override.remove()


@pytest.mark.parametrize("layout", ["gaps between elements", *list(LAYOUTS)[1:3]])
def test_torch_s_operators_and_their_gradients(overridden: None, layout: str) -> None:
    """The strides may be those of queries, keys, lengths, or the gradient of o; torch copies them
    too."""
    sizes = [(2, 4, 7, 16), (2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 7, 16)]
    *dense, do = (torch.randn(*shape).half() for shape in sizes)
    packed = [torch.randn(n, 4, 16).half() for n in (7, 9, 9, 7)]

    def sdpa(q: Any, k: Any, v: Any) -> Any:
        return ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]

    def forward(q: Any, k: Any, v: Any, *ends: Any, **options: Any) -> Any:
        return ATEN._flash_attention_forward(q, k, v, *ends, 4, 5, 0.0, True, False, **options)[0]

    def gradients(attend: Any, tensors: Any, do: Any, lay: Any) -> Any:
        leaves = [lay(t).detach().requires_grad_() for t in tensors]
        o = attend(*leaves)
        return o, *torch.autograd.grad(o, leaves, lay(do))

    lay = LAYOUTS[layout]
    for attend, of, gradient in (
        (sdpa, dense, do),
        (lambda *t: forward(*t, *ENDS), packed[:3], packed[3]),
    ):
        expected, found = (gradients(attend, of, gradient, f) for f in (lambda t: t, lay))
        assert all(map(torch.equal, found, expected))
    ends = [with_gaps(each) for each in ENDS]
    used = torch.tensor([2, 4], dtype=torch.int32)
    assert torch.equal(
        forward(*packed[:3], *ends, seqused_k=with_gaps(used)),
        forward(*packed[:3], *ENDS, seqused_k=used),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_below_flash_attention_s_functions(layout: str) -> None:
    q, k, v, do = (torch.randn(2, n, 4, 16).half() for n in (7, 9, 9, 7))
    options = (0.0, None, True, -1, -1, 0.0, None)
    out, lse, *_ = flash_attn_interface._flash_attn_forward(q, k, v, *options, False)
    found = []
    for lay in (lambda t: t, LAYOUTS[layout]):
        into = [torch.empty_like(t) for t in (q, k, v)]
        tensors = map(lay, (do, q, k, v, out))
        flash_attn_interface._flash_attn_backward(*tensors, lse, *into, *options, False)
        found.append(into)
    assert all(map(torch.equal, *found))


# ---- KV caches ----


@pytest.mark.parametrize("layout", ["gaps between elements", "the last dimension outermost"])
@pytest.mark.parametrize("name", ["q", "k", "v", "cache_seqlens", "cache_leftpad", "block_table"])
def test_arguments_of_a_cache_may_have_gaps(name: str, layout: str) -> None:
    asked = requests(PLAIN, (20, 9), n_q=1)
    placed = in_pages(asked, 8)
    new = asked.k[:, :1].contiguous().nan_to_num(), asked.v[:, :1].contiguous().nan_to_num()
    given: dict[str, Any] = {
        "q": asked.q, "k": new[0], "v": new[1], "block_table": placed.block_table,
        "cache_seqlens": asked.seqlens - 1, "cache_leftpad": torch.tensor([2, 1]).int(),
    }  # fmt: skip

    def run(**arguments: Any) -> Any:
        caches = {"k_cache": placed.k.clone(), "v_cache": placed.v.clone()}
        out, lse = flash.flash_attn_with_kvcache(**caches, **arguments, return_softmax_lse=True)
        return out, lse, *(t.nan_to_num() for t in caches.values())

    expected = run(**given)
    found = run(**given | {name: LAYOUTS[layout](given[name])})
    assert all(map(torch.equal, found, expected))


def test_entries_of_a_cache_may_be_named_by_a_tensor_with_gaps() -> None:
    asked = requests(PLAIN, (20, 9, 30), n_q=1)
    entries = torch.tensor([2, 0, 1], dtype=torch.int32)
    lengths = asked.seqlens[entries.long()]
    expected, found = (
        flash.flash_attn_with_kvcache(
            asked.q, asked.k, asked.v, cache_seqlens=lengths, cache_batch_idx=each
        )
        for each in (entries, with_gaps(entries))
    )
    assert torch.equal(found, expected)


def test_without_numbers_sequences_have_the_first_entries() -> None:
    """The cache has more slots than the batch, and new keys are appended in place."""
    asked = requests(PLAIN, (20, 9, 30), n_q=1)
    k, v = asked.k.nan_to_num(), asked.v.nan_to_num()
    arguments = asked.q[:2], k[:2, :1] + 1, v[:2, :1] + 1
    lengths = torch.tensor([17, 6], dtype=torch.int32)
    whole, some = [[k.clone(), v.clone()] for _ in range(2)]
    q, *new = arguments
    expected = flash.flash_attn_with_kvcache(
        q, *whole, *new, cache_seqlens=lengths, cache_batch_idx=torch.arange(2, dtype=torch.int32)
    )
    assert torch.equal(
        flash.flash_attn_with_kvcache(q, *some, *new, cache_seqlens=lengths), expected
    )
    assert all(map(torch.equal, some, whole)) and not torch.equal(some[0], k)


@pytest.mark.parametrize("n_queries", [1, 40])
@pytest.mark.parametrize("layout", ["gaps between elements", "the last dimension outermost"])
def test_the_pages_of_packed_queries_may_be_listed_with_gaps(n_queries: int, layout: str) -> None:
    """The stride of a single column is arbitrary, so a page table with one column is tested too."""
    k, v = torch.randn(5, 16, 2, 64).half(), torch.randn(5, 16, 2, 64).half()
    q = torch.randn(2 * n_queries, 4, 64).half()
    for table in (torch.tensor([[3, 1], [0, 2]]).int(), torch.tensor([[3], [1]]).int()):
        rows = 16 * table.shape[1]
        lengths = [torch.tensor([0, n, 2 * n]).int() for n in (n_queries, rows)]
        expected, found = (
            flash.flash_attn_varlen_func(q, k, v, *lengths, n_queries, rows, block_table=each)
            for each in (table, LAYOUTS[layout](table))
        )
        assert torch.equal(found, expected)
