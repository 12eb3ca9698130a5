"""Changes between a forward and its backward: the gradients are those of the forward, or torch says
which tensor was modified."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any

import pytest
import torch

import flashsmith
from support.between import RECIPES, World, drawn
from support.inplace import VALUES, WAYS, all_ways, change

SEEDS = range(int(os.environ.get("FLASHSMITH_TEST_SEEDS", "3")))  # seeds of random calls
Make = Callable[[], World]


@pytest.fixture(params=[*RECIPES, *SEEDS], ids=str)
def make(request: pytest.FixtureRequest) -> Make:
    """Returns a function that makes the same call each time."""

    def made() -> World:
        torch.manual_seed(5)
        return drawn(request.param) if request.param in SEEDS else RECIPES[request.param]()

    return made


def unchanged(make: Make) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Returns the results and the gradients of an undisturbed call."""
    world = make()
    results = world.attend()
    gradients = world.gradients(results)
    return tuple(t.detach() for t in results), gradients


def equal(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> bool:
    return all(map(torch.equal, found, expected))


class Seen:
    """The behaviour of a call after a change."""

    def __init__(self, make: Make) -> None:
        self.make = make
        self.results, self.gradients = unchanged(make)

    def after(self, act: Callable[[World], object]) -> str:
        """Returns the error: empty if the gradients are those of the forward; or "refused"."""
        world = self.make()
        results = world.attend()
        assert equal(results, self.results)
        act(world)
        try:
            gradients = world.gradients(results)
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                return "refused"
            return f"{type(error).__name__}: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "" if equal(gradients, self.gradients) else "other gradients, without a word"

    def changed_before(self, act: Callable[[World], object]) -> bool:
        """Returns whether the change, made before the forward, changes the results."""
        world = self.make()
        act(world)
        return not equal(world.attend(), self.results)


def ways_of(world: World, name: str, ways: Iterator[str]) -> list[str]:
    """Returns two ways to change a tensor; torch cannot reshape a differentiable tensor in
    place."""
    t, _ = world.tensors[name]
    usable = VALUES if t.requires_grad else WAYS
    found = []
    while len(found) < 2:
        way = next(ways)
        fits = way != "transpose_" or (t.ndim > 1 and t.shape[0] == t.shape[-1])
        if way in usable and fits:
            found.append(way)
    return found


def test_tensors_that_change_in_place_are_refused(make: Make) -> None:
    seen, world, wrong = Seen(make), make(), {}
    world.attend()
    ways = all_ways(Random(" ".join(world.tensors)))
    for name in world.tensors:
        for way in ways_of(world, name, ways):
            result = seen.after(lambda world: change(*world.tensors[name], way))  # noqa: B023
            if result not in ("", "refused"):
                wrong[f"{name}, {way}"] = result
    assert not wrong


def test_values_that_change_are_as_they_were(make: Make) -> None:
    seen = Seen(make)
    wrong = {}
    for name in make().values:
        result = seen.after(lambda world: world.values[name]())  # noqa: B023
        if result:
            wrong[name] = result
    assert not wrong


@pytest.mark.parametrize("recipe", RECIPES)
def test_all_that_is_changed_here_matters(recipe: str) -> None:
    """The change gives other results if it comes before the forward."""

    def make() -> World:
        torch.manual_seed(5)
        return RECIPES[recipe]()

    seen = Seen(make)
    for name in make().tensors:
        act = lambda world: change(*world.tensors[name], "copy_")  # noqa: B023, E731
        assert seen.changed_before(act), name
    for name in make().values:
        if name != "nothing" and recipe != "a_generator":
            assert seen.changed_before(lambda world: world.values[name]()), name  # noqa: B023


# ---- state outside of the call ----


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "deterministic": deterministic,
    "default dtype": default_dtype,
    "default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "fixed seed": torch.random.fork_rng,
}
SOME = ("dense", "used", "packed", "dropout", "a_table", "a_block_mask")


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("recipe", SOME)
def test_the_state_of_torch_in_the_backward_does_not_matter(recipe: str, around: str) -> None:
    torch.manual_seed(5)
    world = RECIPES[recipe]()
    results = world.attend()
    expected = world.gradients(results, retain_graph=True)
    random = torch.Generator().manual_seed(3)
    given = [torch.randn(t.shape, generator=random).to(t.dtype) for t in results]
    state = torch.get_rng_state()
    with AROUND[around]():
        found = torch.autograd.grad(results, [*world.leaves.values()], given)
    assert torch.equal(torch.get_rng_state(), state)
    for own, right in zip(found, expected, strict=True):
        if around == "deterministic":  # other kernels sum in another order
            torch.testing.assert_close(own, right, rtol=1e-2, atol=1e-2)
        else:
            assert torch.equal(own, right)


def test_weights_that_are_drawn_are_dropped_in_both_directions() -> None:
    """The backward uses the forward's state, whatever the generator has drawn since."""

    def gradients(disturb: Callable[[], object]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(5)
        world = RECIPES["dropout"]()
        del world.keywords["rng_state"]
        results = world.attend()
        disturb()
        return world.gradients(results)

    expected = gradients(lambda: None)
    assert equal(gradients(lambda: torch.rand(100)), expected)
    assert equal(gradients(lambda: torch.manual_seed(1)), expected)


@pytest.mark.parametrize("recipe", RECIPES)
def test_other_calls_between_do_not_matter(recipe: str) -> None:
    """The other calls are of the same kind with other values, and the backward runs on another
    thread."""
    torch.manual_seed(5)
    world = RECIPES[recipe]()
    results = world.attend()
    done, other = RECIPES[recipe](), RECIPES[recipe]()
    done.gradients(done.attend())
    expected = world.gradients(results, retain_graph=True)
    found: list[tuple[torch.Tensor, ...]] = []
    unfinished = other.attend()
    thread = threading.Thread(target=lambda: found.append(world.gradients(results)))
    thread.start()
    thread.join()
    other.gradients(unfinished)
    assert equal(found[0], expected)
    torch.manual_seed(5)
    again = RECIPES[recipe]()
    assert equal(again.gradients(again.attend()), expected)


def test_an_optimiser_steps_before_the_backward() -> None:
    """The parameters are passed directly, without an operation in between."""
    for name in "qkv":
        q, k, v = (torch.randn(1, 20, 2, 64).to(torch.bfloat16) for _ in range(3))
        given = {"q": q, "k": k, "v": v}
        given = {n: torch.nn.Parameter(t) for n, t in given.items()}
        o = flashsmith.attention(**given)
        assert isinstance(o, torch.Tensor)
        given[name].grad = torch.ones_like(given[name])
        torch.optim.AdamW([given[name]]).step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            o.sum().backward()
