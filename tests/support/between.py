"""Calls of ``attention`` whose arguments a test can change between the call and its backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import torch

import flashsmith
from support.captures import HEADS, KINDS, LENGTH

BF16 = torch.bfloat16
Pair = tuple[torch.Tensor, torch.Tensor]
TOTAL = 37  # rows of packed tensors; the last two keys belong to no sequence
# The features that a call may have beside q, k and v, apart from functions.
FEATURES = ("window", "softcap", "alibi", "alibi by batch", "sinks", "bias", "dropout")


@dataclass
class World:
    """A call, and everything that may change after it.

    leaves: Tensors that require gradients. The call gets results of them, not the leaves.
    keywords: The keywords of ``attention``, including q, k and v.
    tensors: The call's tensors, each with other values that may be written into it.
    values: Changes of everything that is not a tensor.
    """

    leaves: dict[str, torch.Tensor] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Pair] = field(default_factory=dict)
    values: dict[str, Callable[[], object]] = field(default_factory=dict)

    def add_leaf(self, name: str, t: torch.Tensor) -> None:
        leaf = t.requires_grad_()
        self.leaves[name] = leaf
        self.keywords[name] = leaf * 1
        self.tensors[name] = self.keywords[name], (t + 1).detach()

    def add(self, name: str, t: torch.Tensor, other: torch.Tensor) -> None:
        self.keywords[name] = t
        self.tensors[name] = t, other

    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Calls ``attention``, and returns its results, which may be changed, too."""
        o, lse = flashsmith.attention(**self.keywords, return_lse=True)
        assert isinstance(o, torch.Tensor) and isinstance(lse, torch.Tensor)
        for name, t in (("o", o), ("lse", lse)):
            self.tensors[name] = t, (t.detach().nan_to_num(neginf=0) + 1)
        return o, lse

    def gradients(
        self, results: tuple[torch.Tensor, torch.Tensor], **keywords: Any
    ) -> tuple[torch.Tensor, ...]:
        """Returns the gradients of both results by the leaves."""
        random = torch.Generator().manual_seed(3)
        given = [torch.randn(t.shape, generator=random).to(t.dtype) for t in results]
        return torch.autograd.grad(results, [*self.leaves.values()], given, **keywords)


def dense(features: tuple[str, ...] = (), *, used: bool = False, **keywords: Any) -> World:
    """Returns two sequences of 40 queries and keys; if ``used``, parts of them count (seqused)."""
    world = World(keywords=dict(keywords))
    for name, heads in (("q", HEADS), ("k", 1), ("v", 1)):
        world.add_leaf(name, torch.randn(2, LENGTH, heads, 64).to(BF16))
    if used:
        world.add("seqused_q", ints(33, 8), ints(40, 20))
        world.add("seqused_k", ints(40, 11), ints(21, 39))
    _add(world, features)
    return world


def packed(features: tuple[str, ...] = (), **keywords: Any) -> World:
    """Returns three packed sequences, one of them without queries."""
    world = World(keywords=dict(keywords))
    for name, heads in (("q", HEADS), ("k", 1), ("v", 1)):
        world.add_leaf(name, torch.randn(TOTAL, heads, 64).to(BF16))
    world.add("cu_seqlens_q", ints(0, 16, 16, TOTAL), ints(0, 4, 20, TOTAL))
    world.add("cu_seqlens_k", ints(0, 9, 20, 35), ints(0, 15, 18, 30))
    world.keywords |= {"max_seqlen_q": TOTAL, "max_seqlen_k": TOTAL}
    _add(world, features)
    return world


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _add(world: World, features: tuple[str, ...]) -> None:
    for feature in features:
        if feature == "window":
            world.keywords["window_size"] = sides = [9, 3]
            world.values["window_size"] = partial(sides.__setitem__, slice(None), [2, 20])
        elif feature == "softcap":
            world.keywords["softcap"] = 2.0
        elif feature.startswith("alibi"):
            batch = len(world.keywords.get("cu_seqlens_q", (0, 0, 0))) - 1
            shape = (HEADS,) if feature == "alibi" else (batch, HEADS)
            world.add("alibi_slopes", torch.rand(shape) / 9, torch.rand(shape) + 1)
        elif feature == "sinks":
            world.add_leaf("sinks", torch.randn(HEADS))
        elif feature == "bias":
            world.add_leaf("bias", torch.randn(1, HEADS, LENGTH, LENGTH).to(BF16))
        elif feature == "dropout":
            world.keywords["dropout_p"] = 0.25
            world.add("rng_state", torch.tensor([7, 3]), torch.tensor([2**40 + 17, 5]))


def captured(kind: str) -> World:
    """Returns a dense call with a kind of functions, or a block mask."""
    world = dense()
    found = KINDS[kind]()
    world.keywords |= found.keywords
    world.tensors |= found.tensors
    world.values |= found.values
    return world


# Each recipe's kernels are built once; together the recipes have all features of a call.
RECIPES: dict[str, Callable[[], World]] = {
    "plain": dense,
    "dense": lambda: dense(("window", "softcap", "alibi", "sinks", "bias")),
    "used": lambda: dense(("alibi by batch", "sinks"), used=True, causal=True),
    "packed": lambda: packed(("window", "softcap", "alibi by batch", "sinks")),
    "dropout": lambda: dense(("dropout",), causal=True),
    "packed dropout": lambda: packed(("dropout", "sinks")),
    **{kind: lambda kind=kind: captured(kind) for kind in KINDS},
}


def drawn(seed: int) -> World:
    """Returns a random call, with any features that go together."""
    random = Random(seed)
    kind = random.choice([None, *KINDS])
    is_packed = random.random() < 0.4 and "block_mask" not in (kind or "")
    features = [f for f in FEATURES if random.random() < 0.4]
    if "alibi" in features and "alibi by batch" in features:
        features.remove("alibi")
    if is_packed and "bias" in features:
        features.remove("bias")
    keywords = {"causal": random.random() < 0.5, "top_left": random.random() < 0.3}
    keywords["deterministic"] = random.random() < 0.3
    torch.manual_seed(seed)
    if is_packed:
        world = packed(tuple(features), **keywords)
    else:
        used = random.random() < 0.3 and "bias" not in features
        used = used and "block_mask" not in (kind or "")
        world = dense(tuple(features), used=used, **keywords)
    if kind is not None:
        found = KINDS[kind]()
        world.keywords |= found.keywords
        world.tensors |= found.tensors
        world.values |= found.values
    return world
