"""The semantics and sequence lengths of a case, in words that reproduce the same tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from flashsmith.configs import FULL, Variant
from flashsmith.lab.soak.functions import functions_of, number_of_functions
from flashsmith.problem import Problem
from flashsmith.reference import Packing, Semantics, check_dropout

# ALiBi slopes: usual, almost none, none, steep, and negative, which grows with the distance.
_SLOPES = (0.5, 2.0**-8, 0.0, 40.0, -0.02)
# Sinks of little, hardly any, all and no weight, and beyond the range of exponentials in float32.
_SINKS = (0.7, -1e4, 1e4, -math.inf, 30.0, -3.0)
_MODULI = (3.0, 1.0, 7.0, 2.0)
_BIAS_DIMENSIONS = "bhij"
_SHARE_HIDDEN = 0.1  # of a bias' elements, and of its rows

_WEIGH_NOTHING = ("softcap", "varlen", "padded")  # fields of a variant

Window = tuple[int, int]
Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Meaning:
    """The keywords of ``flashsmith.attention`` that say what is computed; tensors by their kind.

    Attributes:
        causal, window_size, softcap, top_left: As in ``attention``.
        alibi: "h": a slope for each head; "bh": for each head of each sample; "": none.
        sinks: Whether heads have sinks.
        bias: Letters of "bhij" in this order: the bias' dimensions that are not 1. "": no bias.
        dropout: The share of weights that are dropped, by a state of random numbers.
        functions: Whether there are a score_mod and a mask_mod, from ``functions_of``.

    Raises:
        ValueError: A field has a value that no call can have; the message names the field.
    """

    causal: bool = False
    window_size: Window = (-1, -1)
    softcap: float = 0.0
    alibi: str = ""
    sinks: bool = False
    bias: str = ""
    top_left: bool = False
    dropout: float = 0.0
    functions: bool = False

    def __post_init__(self) -> None:
        if min(self.window_size) < -1 or len(self.window_size) != 2:
            raise ValueError(f"window_size is {self.window_size}; expected two numbers, -1 or more")
        if self.softcap < 0:
            raise ValueError(f"softcap is {self.softcap}; expected 0 or more")
        if self.alibi not in ("", "h", "bh"):
            raise ValueError(f"alibi is {self.alibi!r}; expected h or bh")
        if self.bias != "".join(d for d in _BIAS_DIMENSIONS if d in self.bias):
            raise ValueError(f"bias is {self.bias!r}; expected some of {_BIAS_DIMENSIONS}")
        check_dropout(self.dropout, "dropout")

    @property
    def variant(self) -> Variant:
        """The variant for dense tensors."""
        return Variant(
            causal=self.causal or self.window_size[1] >= 0,
            window=self.window_size[0] >= 0,
            softcap=self.softcap > 0,
            alibi=bool(self.alibi),
            sinks=self.sinks,
            bias=bool(self.bias),
            dropout=self.dropout > 0,
            score=number_of_functions() if self.functions else 0,
        )

    def semantics(
        self, problem: Problem, softmax_scale: float | None, seed: int, device: str
    ) -> Semantics:
        """Returns the semantics, with tensors of random values that depend on the seed alone."""
        generator = torch.Generator(device).manual_seed(seed)
        heads, batch = problem.heads, problem.batch
        score_mod = mask_mod = None
        if self.functions:
            score_mod, mask_mod = functions_of(_some(_MODULI, (batch,), generator).int())
        return Semantics(
            causal=self.causal,
            softmax_scale=softmax_scale,
            window_size=self.window_size,
            softcap=self.softcap,
            alibi_slopes=_some(
                _SLOPES, (batch, heads) if self.alibi == "bh" else (heads,), generator
            )
            if self.alibi
            else None,
            sinks=_some(_SINKS, (heads,), generator) if self.sinks else None,
            bias=self._bias(problem, generator) if self.bias else None,
            top_left=self.top_left,
            dropout_p=self.dropout,
            rng_state=_state(generator) if self.dropout > 0 else None,
            score_mod=score_mod,
            mask_mod=mask_mod,
        )

    def _bias(self, problem: Problem, generator: torch.Generator) -> torch.Tensor:
        """Returns a normally distributed bias with some elements, and some whole rows, of -inf."""
        sizes = (problem.batch, problem.heads, problem.seq_len_q, problem.seq_len_k)
        shape = [
            size if dimension in self.bias else 1
            for dimension, size in zip(_BIAS_DIMENSIONS, sizes, strict=True)
        ]
        device = generator.device
        bias = 3 * torch.randn(shape, generator=generator, device=device)
        bias[torch.rand(shape, generator=generator, device=device) < _SHARE_HIDDEN] = -math.inf
        if "i" in self.bias:
            rows = torch.rand(shape[:3], generator=generator, device=device) < _SHARE_HIDDEN
            bias[rows] = -math.inf
        return bias.to(problem.dtype.to_torch_dtype())


def _some(
    values: tuple[float, ...], shape: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    """Returns the values cyclically, beginning at a random one."""
    first = int(torch.randint(len(values), (), generator=generator, device=generator.device))
    places = (torch.arange(math.prod(shape), device=generator.device) + first) % len(values)
    return torch.tensor(values, device=generator.device)[places].view(shape)


def _state(generator: torch.Generator) -> torch.Tensor:
    state = torch.empty(2, dtype=torch.int64, device=generator.device)
    return state.random_(generator=generator)


def weighs_keys(variant: Variant) -> bool:
    """Returns whether a key's weight may be 0 because of its position or of a sink."""
    return variant != replace(FULL, **{name: getattr(variant, name) for name in _WEIGH_NOTHING})


@dataclass(frozen=True)
class Varlen:
    """The lengths of each varlen sequence of the batch; None: the problem's lengths.

    Attributes:
        lengths_q, lengths_k: Lengths of packed sequences, one after the other.
        used_q, used_k: The used rows of each sequence.

    A sequence is no longer than the problem's ``seq_len_q`` and ``seq_len_k``.
    """

    lengths_q: Lengths | None = None
    lengths_k: Lengths | None = None
    used_q: Lengths | None = None
    used_k: Lengths | None = None

    def __bool__(self) -> bool:
        return self != DENSE

    def check(self, problem: Problem) -> None:
        """Raises ValueError that names the field that does not fit the problem."""
        for side in "qk":
            longest = getattr(problem, f"seq_len_{side}")
            whole, used = getattr(self, f"lengths_{side}"), getattr(self, f"used_{side}")
            maximum = (longest,) * problem.batch
            for name, lengths in ((f"lengths_{side}", whole), (f"used_{side}", used)):
                if lengths is None:
                    continue
                if len(lengths) != problem.batch:
                    raise ValueError(
                        f"{name} has {len(lengths)} numbers, and batch is {problem.batch}"
                    )
                if not all(0 <= n <= end for n, end in zip(lengths, maximum, strict=True)):
                    raise ValueError(f"{name} is {lengths}; expected 0 to {maximum}")
                maximum = lengths

    def packing(self, device: str) -> Packing:
        def places(lengths: Lengths | None) -> torch.Tensor | None:
            if lengths is None:
                return None
            return torch.tensor([0, *lengths], device=device).cumsum(0).int()

        def used(lengths: Lengths | None) -> torch.Tensor | None:
            return None if lengths is None else torch.tensor(lengths, device=device).int()

        return Packing(
            places(self.lengths_q), places(self.lengths_k), used(self.used_q), used(self.used_k)
        )


PLAIN, DENSE = Meaning(), Varlen()
