"""Autograd beyond a single backward: functions are called once, graphs may be kept, saved tensors
may be restored from elsewhere, parts may be recomputed, and second derivatives are refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flashsmith
from support.between import RECIPES, World
from support.captures import KINDS, LENGTH, Table

MODS = ("score_mod", "mask_mod")
SOME = ("plain", "dense", "used", "packed", "dropout", "both_functions", "a_block_mask_of_torch")


@pytest.fixture(autouse=True)
def _fresh_graphs() -> None:
    torch._dynamo.reset()


def world_of(recipe: str) -> World:
    torch.manual_seed(5)
    return RECIPES[recipe]()


def equal(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> bool:
    return all(map(torch.equal, found, expected))


# ---- functions are called once ----


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def counted(keywords: dict[str, Any]) -> list[Counted]:
    """Wraps the functions, and the mask_mod of a block mask, in counters."""
    counters = []
    for name in MODS:
        if name in keywords:
            keywords[name] = Counted(keywords[name])
            counters.append(keywords[name])
    if "block_mask" in keywords:
        mask = keywords["block_mask"]
        counters.append(Counted(mask.mask_mod))
        object.__setattr__(mask, "mask_mod", counters[-1])  # ours is frozen
    return counters


@pytest.mark.parametrize("kind", KINDS)
def test_functions_are_called_once_in_a_forward_and_never_in_a_backward(kind: str) -> None:
    world = world_of(kind)
    counters = counted(world.keywords)
    results = world.attend()
    assert [each.calls for each in counters] == [1] * len(counters)
    world.gradients(results, retain_graph=True)
    world.gradients(results)
    assert [each.calls for each in counters] == [1] * len(counters)
    if kind != "a_generator":  # it gives another number each time
        with torch.no_grad():
            world.attend()
        assert [each.calls for each in counters] == [2] * len(counters)


def test_a_function_that_raises_when_it_is_called_again() -> None:
    q, k, v = (torch.randn(1, LENGTH, 2, 64).bfloat16().requires_grad_() for _ in range(3))
    left = [1]

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        left.pop()
        return s * 2

    o = flashsmith.attention(q, k, v, score_mod=score_mod)
    assert isinstance(o, torch.Tensor)
    o.sum().backward()
    assert q.grad is not None and q.grad.any()


def test_a_buffer_that_functional_call_replaces() -> None:
    """The module has its own buffer back when the backward runs."""
    torch.manual_seed(5)
    q, k, v = (torch.randn(1, LENGTH, 2, 64).bfloat16().requires_grad_() for _ in range(3))
    table = torch.randn(LENGTH)

    def gradients(call: Callable[[], Any]) -> tuple[torch.Tensor, ...]:
        o, lse = call()
        return torch.autograd.grad([o, lse], [q, k, v], [o.detach(), lse.detach()])

    expected = gradients(lambda: Table(table)(q, k, v))
    module = Table(torch.randn(LENGTH))
    call = lambda: torch.func.functional_call(module, {"table": table}, (q, k, v))  # noqa: E731
    assert equal(gradients(call), expected)


# ---- graphs that are kept, and tensors that are saved elsewhere ----


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_kept_graph_gives_the_same_again(recipe: str) -> None:
    world = world_of(recipe)
    results = world.attend()
    once = world.gradients(results, retain_graph=True)
    assert equal(world.gradients(results), once)


def _misaligned(t: torch.Tensor) -> torch.Tensor:
    """Returns a copy that begins one element behind an aligned address."""
    if t.numel() == 0:
        return t.clone()
    memory = torch.empty(t.numel() + 1, dtype=t.dtype)
    return memory[1:].view(t.shape).copy_(t)


def _written_out(t: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    return torch.load(file)


def _permuted(t: torch.Tensor, order: Callable[[int], list[int]]) -> torch.Tensor:
    """Returns a copy whose dimensions have another order in memory."""
    there = order(t.ndim)
    back = sorted(range(t.ndim), key=there.__getitem__)
    return t.permute(there).contiguous().permute(back)


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": torch.clone,
    "file": _written_out,
    "first dimension inside": lambda t: _permuted(t, lambda n: [*range(1, n), 0]),
    "reversed": lambda t: _permuted(t, lambda n: [*range(n)][::-1]),
    "other rows outside": lambda t: _permuted(
        t, lambda n: [*range(n - 1)][::-1] + [n - 1] * (n > 0)
    ),
    "padded": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]] if t.ndim else t.clone(),
    "misaligned": _misaligned,
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("recipe", SOME)
def test_saved_tensors_come_back_laid_out_otherwise(recipe: str, copy: str) -> None:
    """An offload may change strides; the LSE, lengths and tables are saved as well."""
    world = world_of(recipe)
    expected = world.gradients(world.attend())
    world = world_of(recipe)
    saved = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        saved.append(t)
        return t.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, COPIES[copy]):
        results = world.attend()
    assert len(saved) >= 5
    assert equal(world.gradients(results), expected)


@pytest.mark.parametrize("recipe", SOME)
def test_saved_tensors_are_all_that_a_backward_reads(recipe: str) -> None:
    """The hooks keep copies, so that changes to the call's own tensors must not matter."""
    world = world_of(recipe)
    expected = world.gradients(world.attend())
    world = world_of(recipe)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        results = world.attend()
    for t, other in world.tensors.values():
        if t.data_ptr() not in (r.data_ptr() for r in results):
            with torch.no_grad():
                t.copy_(other)
    assert equal(world.gradients(results), expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("recipe", [*SOME, "loop", "a_list", "a_buffer"])
def test_checkpoints_compute_functions_again(recipe: str, use_reentrant: bool) -> None:
    world = world_of(recipe)
    expected = world.gradients(world.attend())
    world = world_of(recipe)
    names = [*world.leaves]
    counters = counted(world.keywords)

    def attend(*leaves: torch.Tensor) -> Any:
        given = world.keywords | dict(zip(names, leaves, strict=True))
        return flashsmith.attention(**given, return_lse=True)

    results = checkpoint(attend, *world.leaves.values(), use_reentrant=use_reentrant)
    random = torch.Generator().manual_seed(3)
    given = [torch.randn(t.shape, generator=random).to(t.dtype) for t in results]
    torch.autograd.backward(results, given)
    found = tuple(leaf.grad for leaf in world.leaves.values())
    assert equal(found, expected)  # type: ignore[arg-type]
    assert all(each.calls == 2 for each in counters)


# ---- no second derivatives ----

ATTEND: dict[str, Callable[..., Any]] = {
    "direct": flashsmith.attention,
    "operator": lambda q, k, v, **given: torch.ops.flashsmith.attention_forward(
        q, k, v, True, **given
    )[0],
    "compiled": lambda *given, **keywords: torch.compile(
        flashsmith.attention, backend="eager"
    )(*given, **keywords),
    "compiled ahead": lambda *given, **keywords: torch.compile(
        flashsmith.attention, backend="aot_eager"
    )(*given, **keywords),
    "lse": lambda q, k, v, **given: flashsmith.attention(q, k, v, return_lse=True, **given)[1],
}  # fmt: skip


def linear(o: torch.Tensor) -> torch.Tensor:
    return o.float().sum()


def quadratic(o: torch.Tensor) -> torch.Tensor:
    return o.float().square().sum()


@pytest.mark.parametrize("loss", [linear, quadratic])
@pytest.mark.parametrize("by", ["q", "k", "v", "qkv"])
@pytest.mark.parametrize("how", ATTEND)
def test_a_second_derivative_is_refused(how: str, by: str, loss: Callable[..., Any]) -> None:
    """A gradient penalty beside a loss needs one, even if the loss is linear in the result."""
    given = {name: torch.randn(1, 20, 2, 64).bfloat16() for name in "qkv"}
    leaves = [given[name].requires_grad_() for name in by]
    with pytest.raises((RuntimeError, NotImplementedError)):
        own = loss(ATTEND[how](**given))
        found = torch.autograd.grad(own, leaves, create_graph=True)
        (own + sum(t.float().square().sum() for t in found)).backward()


@pytest.mark.parametrize("how", ["direct", "operator", "compiled"])
def test_a_derivative_by_what_comes_back_is_refused(how: str) -> None:
    """A Jacobian-vector product by two backwards needs such a derivative."""
    q, k, v = (torch.randn(1, 20, 2, 64).bfloat16() for _ in range(3))
    o = ATTEND[how](q.requires_grad_(), k, v)
    do = torch.zeros_like(o).requires_grad_()
    with pytest.raises((RuntimeError, NotImplementedError)):
        (dq,) = torch.autograd.grad(o, q, do, create_graph=True)
        torch.autograd.grad(dq, do, torch.ones_like(dq))


@pytest.mark.parametrize("how", ["direct", "operator"])
def test_first_derivatives_with_a_graph_are_as_without(how: str) -> None:
    """A graph that is requested but not used does no harm."""
    leaves = [torch.randn(1, 20, 2, 64).bfloat16().requires_grad_() for _ in range(3)]
    loss = lambda: linear(ATTEND[how](*leaves))  # noqa: E731
    found = torch.autograd.grad(loss(), leaves, create_graph=True)
    assert equal(found, torch.autograd.grad(loss(), leaves))


@pytest.mark.parametrize(
    "transform",
    [torch.func.hessian, torch.func.jacfwd, torch.func.jacrev],
    ids=lambda transform: transform.__name__,
)
def test_transforms_that_differentiate_are_refused(transform: Any) -> None:
    q, k, v = (torch.randn(1, 4, 1, 64).bfloat16() for _ in range(3))
    with pytest.raises((TypeError, NotImplementedError, RuntimeError, ValueError), match=r"\bq\b"):
        transform(lambda x: linear(flashsmith.attention(x, k, v)))(q)


def test_hessians_of_autograd_are_refused() -> None:
    q, k, v = (torch.randn(1, 4, 1, 64).bfloat16() for _ in range(3))
    function = lambda x: linear(flashsmith.attention(x, k, v))  # noqa: E731
    for derivative in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        with pytest.raises((RuntimeError, NotImplementedError)):
            derivative(function, q, torch.ones_like(q))
