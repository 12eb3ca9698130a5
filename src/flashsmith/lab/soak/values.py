"""The values of q, k and v: patterns under which kernels have gone wrong, or could."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Values:
    """A pattern, with the block of keys along which it moves and by how much.

    Attributes:
        pattern: A name of ``PATTERNS``.
        block: Number of keys between edges (``spike``) or steps (``rise``, ``fall``).
        step: Change of a row's largest score from block to block, in log2, for ``rise`` and
            ``fall`` alone.
    """

    pattern: str = "normal"
    block: int = 64
    step: float = 0.0

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise ValueError(f"pattern {self.pattern!r} is not known; known: {', '.join(PATTERNS)}")
        if self.block < 1 or not math.isfinite(self.step):
            raise ValueError("block is at least 1, and step a finite number")

    def __str__(self) -> str:
        """Returns text like `rise:128:7.92`, without numbers of default value."""
        block = f":{self.block}" if self.step or self.block != Values.block else ""
        return f"{self.pattern}{block}{f':{self.step}' if self.step else ''}"

    @classmethod
    def parse(cls, text: str) -> Values:
        """Returns the values whose ``str`` is ``text``. Raises ValueError if it is malformed."""
        pattern, *numbers = text.split(":")
        if len(numbers) > 2:
            raise ValueError("expected pattern, pattern:block or pattern:block:step")
        block = int(numbers[0]) if numbers else cls.block
        return cls(pattern, block, float(numbers[1]) if len(numbers) > 1 else cls.step)

    @property
    def reach_hidden_rows(self) -> bool:
        """Whether a value that is not finite reaches queries that do not see its key."""
        return self.pattern in ("nan_v", "inf_v")

    @property
    def are_finite(self) -> bool:
        return not (self.reach_hidden_rows or self.make_scores_nan)

    @property
    def make_scores_nan(self) -> bool:
        return self.pattern in ("nan_q", "nan_k", "inf_q", "inf_k")


@dataclass(frozen=True)
class Field:
    """The tensors that a pattern changes in place; before, they are standard normal float32."""

    q: torch.Tensor  # (batch, seq_len_q, heads, d_head)
    k: torch.Tensor  # (batch, seq_len_k, heads_kv, d_head)
    v: torch.Tensor
    values: Values
    dtype: torch.dtype
    scale: float  # softmax_scale
    causal: bool
    largest_weight: float = 1.0  # above 1 with dropout


def make_values(
    values: Values,
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    v_shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    scale: float,
    causal: bool,
    seed: int,
    device: str,
    largest_weight: float = 1.0,
) -> QKV:
    """Returns q, k and v of ``dtype``, contiguous."""
    generator = torch.Generator(device).manual_seed(seed)
    q, k, v = (
        torch.randn(shape, generator=generator, device=device)
        for shape in (q_shape, k_shape, v_shape)
    )
    if k.numel() and q.numel():
        PATTERNS[values.pattern](Field(q, k, v, values, dtype, scale, causal, largest_weight))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _normal(field: Field) -> None:
    pass


def _huge(field: Field) -> None:
    """Makes scores of hundreds and thousands: one key takes the row, and o nears FP16's maximum."""
    field.q.mul_(30)
    field.k.mul_(30)
    field.v.clamp_(-3, 3).mul_(2e4 / field.largest_weight)


def _constant(field: Field) -> None:
    for tensor in (field.q, field.k, field.v):
        tensor.fill_(0.75)


def _zeros(field: Field) -> None:
    """Makes all scores 0: every key that a query sees has the same weight."""
    field.q.zero_()
    field.k.zero_()


def _negative(field: Field) -> None:
    """Makes all scores far below 0, where a maximum that begins at 0 would be wrong."""
    field.q.abs_().mul_(4)
    field.k.abs_().neg_().mul_(4)


def _spike(field: Field) -> None:
    """Makes one key of each head take the row: the first, the last, or one at a block's edge."""
    n_keys, block = field.k.shape[1], field.values.block
    last_edge = (n_keys - 1) // block * block
    places = [0, n_keys - 1, block - 1, block, last_edge - 1, last_edge]
    field.q[..., 0].fill_(_strong(field, 12))
    field.k[..., 0].zero_()
    for batch in range(field.k.shape[0]):
        for head in range(field.k.shape[2]):
            place = places[(batch + head) % len(places)]
            field.k[batch, min(max(place, 0), n_keys - 1), head, 0] = _strong(field, 12)


def _match(field: Field) -> None:
    """Makes query i and key i, counted from the end, alike, and unlike all others."""
    n_queries, n_keys = field.q.shape[1], field.k.shape[1]
    sharing = field.q.shape[2] // field.k.shape[2]
    keys = field.k.repeat_interleave(sharing, dim=2)
    shift = n_keys - n_queries
    rows = torch.arange(n_queries, device=field.q.device)
    field.q.copy_(keys[:, (rows + shift) % n_keys])
    norm = (field.k.shape[-1] * field.scale) ** 0.5
    field.q.mul_(4 / norm)
    field.k.mul_(4 / norm)


def _strong(field: Field, score_log2: float) -> float:
    """Returns the number whose square gives a score of ``score_log2``, in units of log2."""
    return math.sqrt(score_log2 / (field.scale * math.log2(math.e)))


def _rise(field: Field) -> None:
    _stairs(field, descending=False)


def _fall(field: Field) -> None:
    _stairs(field, descending=True)


def _stairs(field: Field, descending: bool) -> None:
    """Makes the largest score of a row grow by ``step`` from each block of keys to the next.

    One key of a block has that score, the others less by up to 4 (log2). Of five rows, two go up,
    one goes up half as steeply, one goes down, and one is random: a warp has rows that move their
    maximum beside rows that do not.
    """
    q, k, block = field.q, field.k, field.values.block
    n_queries, n_keys = q.shape[1], k.shape[1]
    keys = torch.arange(n_keys, device=k.device)
    blocks = keys // block
    place = blocks.max() - blocks if descending else blocks
    generator = torch.Generator(k.device).manual_seed(1)
    below = 4 * torch.rand(n_keys, generator=generator, device=k.device)
    below[(blocks * 37 + keys) % block == 0] = 0
    target = field.values.step * place - below  # the score of a row that follows, in log2
    unit = field.scale * math.log2(math.e)
    factor = 2.0 ** round(math.log2(unit**-0.5))
    # One element of k has too few bits to tell 0.99 from 1.01, so two elements hold the score.
    whole = target / (unit * factor)
    high = whole.to(field.dtype).float()
    rows = torch.arange(n_queries, device=q.device) % 5
    follow = torch.tensor([1.0, 0.5, 1.0, -1.0, 0.0], device=q.device)[rows] * factor
    noise = (rows == 4).float()[None, :, None, None]
    q.mul_(noise)
    q[..., 0] += follow[None, :, None]
    q[..., 1] += follow[None, :, None]
    k[..., 0] = high[None, :, None]
    k[..., 1] = (whole - high)[None, :, None]


def _single(which: str, value: float) -> Callable[[Field], None]:
    """Sets one element of the middle row of every second head to ``value``."""

    def change(field: Field) -> None:
        tensor = getattr(field, which)
        tensor[:, tensor.shape[1] // 2, ::2, 3] = value

    return change


def _infinite_value(field: Field) -> None:
    """Makes all weights equal: a weight that vanishes in 16 bits would give 0 * inf = NaN."""
    field.q.zero_()
    _single("v", math.inf)(field)


PATTERNS: dict[str, Callable[[Field], None]] = {
    "normal": _normal,
    "huge": _huge,
    "constant": _constant,
    "zeros": _zeros,
    "negative": _negative,
    "spike": _spike,
    "match": _match,
    "rise": _rise,
    "fall": _fall,
    "nan_q": _single("q", math.nan),
    "nan_k": _single("k", math.nan),
    "nan_v": _single("v", math.nan),
    "inf_q": _single("q", math.inf),
    "inf_k": _single("k", math.inf),
    "inf_v": _infinite_value,
}

NORMAL = Values()
