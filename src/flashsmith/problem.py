"""The problem of a call: the shapes of its tensors and their element type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from flashsmith.dtype import ELEMENT_BYTES, DType

# Lengths of k in the same range share an entry of a tuned table: up to 512, 513 to 1024, and so on;
# the last range has no end.
LENGTH_BUCKETS = (512, 1024, 2048, 4096, 8192, 16384)
# Fills of the grid, in rows of o an SM, in the same kind of ranges. Up to 64 rows an SM has at most
# one of the smallest tiles; from 512 rows on, the idle part of the last wave hardly counts.
FILL_BUCKETS = (64, 128, 256, 512, 1024)

_SIGNIFICANT_BITS = 4  # of the sizes that decide the choice of a kernel
_SIZES = 4  # dimensions of a tensor: batch, length, heads, d_head


class Bucket(NamedTuple):
    """The problems that share an entry of a tuned table, for one dtype, d_head and variant."""

    seq_len_k: int  # one of LENGTH_BUCKETS
    fill: int  # one of FILL_BUCKETS

    @property
    def words(self) -> str:
        """The bucket in words, like `lengths 513 to 1024, up to 64 rows an SM`."""
        rows = f"{_range_in_words(self.fill, FILL_BUCKETS)} rows an SM"
        return f"{self.lengths}, {rows}"

    @property
    def lengths(self) -> str:
        return f"lengths {_range_in_words(self.seq_len_k, LENGTH_BUCKETS)}"

    def in_order_of_similarity(self) -> list[Bucket]:
        """Returns all buckets of these lengths in order of similarity: this one first, then by
        distance in fill, at equal distance the fuller one first."""
        own = FILL_BUCKETS.index(self.fill)
        places = sorted(range(len(FILL_BUCKETS)), key=lambda place: (abs(place - own), -place))
        return [self._replace(fill=FILL_BUCKETS[place]) for place in places]


def size_class(n: int) -> int:
    """Returns the size that stands for all sizes like ``n`` in the choice of a kernel: n, rounded
    up to four significant bits.

    Sizes up to 16, and powers of two, stand for themselves; there are eight classes from one power
    of two to the next. So lengths that change from call to call share a remembered choice.
    """
    step = _step_of_classes(n)
    return -(-n // step) * step


def sizes_like(n: int) -> range:
    """Returns all sizes that the size class of ``n`` stands for."""
    last = size_class(n)
    return range(last - _step_of_classes(last - 1) + 1, last + 1)


def _step_of_classes(n: int) -> int:
    """Returns the distance between size classes from the power of two at or below ``n`` on."""
    return 1 << max(n.bit_length() - _SIGNIFICANT_BITS, 0)


def _range_in_words(last: int, buckets: tuple[int, ...]) -> str:
    i = buckets.index(last)
    if i == 0:
        return f"up to {last}"
    if i == len(buckets) - 1:
        return f"above {buckets[i - 1]}"
    return f"{buckets[i - 1] + 1} to {last}"


def _bucket_of(value: float, buckets: tuple[int, ...]) -> int:
    return next((bucket for bucket in buckets if value <= bucket), buckets[-1])


@dataclass(frozen=True, order=True)
class Problem:
    """The shapes and dtype of a call: q is (batch, seq_len_q, heads, d_head), k is (batch,
    seq_len_k, heads_kv, d_head); the rows of v and o have d_v elements.

    A size other than d_head and d_v may be 0: nothing is computed then, without an error.

    Attributes:
        heads: A multiple of ``heads_kv``: neighbouring heads of q share a head of k and v.
        d_v: 0 becomes d_head.

    Raises:
        TypeError: A field has the wrong type; the message names it.
        ValueError: A field has a value that no call can have; the message names it.
    """

    dtype: DType
    d_head: int
    batch: int
    heads: int
    heads_kv: int
    seq_len_q: int
    seq_len_k: int
    d_v: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, DType):
            raise TypeError(f"dtype is {self.dtype!r}; expected a DType")
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if type(value) is not int:  # a bool is no size
                raise TypeError(f"{field.name} is {value!r}; expected an int")
            minimum = 1 if field.name == "d_head" else 0
            if value < minimum:
                raise ValueError(f"{field.name} is {value}; expected at least {minimum}")
        if self.d_v == 0:
            object.__setattr__(self, "d_v", self.d_head)
        if self.heads % self.heads_kv if self.heads_kv else self.heads:
            raise ValueError(f"heads is {self.heads}, no multiple of heads_kv {self.heads_kv}")

    def __str__(self) -> str:
        d_v = "" if self.d_v == self.d_head else f"/{self.d_v}"
        return f"{self.dtype} d {self.d_head}{d_v} {self.sizes}"

    @classmethod
    def square(cls, dtype: DType, d_head: int, batch: int, heads: int, seq_len: int) -> Problem:
        """Returns the problem with k shaped as q."""
        return cls(dtype, d_head, batch, heads, heads, seq_len, seq_len)

    @classmethod
    def of_shapes(
        cls, dtype: DType, q: Sequence[int], k: Sequence[int], d_v: int | None = None
    ) -> Problem:
        """Returns the problem of these shapes; v has k's shape with rows of ``d_v`` elements.

        Raises:
            ValueError: A shape does not have 4 dimensions, or the shapes do not fit each other; the
                message names it.
        """
        for name, shape in (("q", q), ("k", k)):
            if len(shape) != _SIZES:
                raise ValueError(
                    f"{name} has {len(shape)} dimensions; expected {_SIZES}: "
                    "(batch, seq_len, n_heads, d_head)"
                )
        (batch, seq_len_q, heads, d_head), (batch_k, seq_len_k, heads_kv, d_head_k) = q, k
        if (batch, d_head) != (batch_k, d_head_k):
            raise ValueError(
                f"k has shape {tuple(k)}, but q has {tuple(q)}; batch and d_head must be equal"
            )
        if heads % heads_kv if heads_kv else heads:
            raise ValueError(
                f"q has {heads} heads and k has {heads_kv}; the heads of q must be a multiple of "
                "those of k"
            )
        return cls(dtype, d_head, batch, heads, heads_kv, seq_len_q, seq_len_k, d_v or d_head)

    @property
    def representative(self) -> Problem:
        """The problem that stands for this one in the choice of a kernel: batch size and lengths
        are rounded up to their size classes."""
        return replace(
            self,
            batch=size_class(self.batch),
            seq_len_q=size_class(self.seq_len_q),
            seq_len_k=size_class(self.seq_len_k),
        )

    @property
    def sizes(self) -> str:
        """The text batch x heads x length, `4 x 16 x 4096`, or `4 x 16/2 x 1/4096` if k's sizes
        differ."""
        heads, lengths = (
            f"{of_q}" if of_q == of_k else f"{of_q}/{of_k}"
            for of_q, of_k in (
                (self.heads, self.heads_kv),
                (self.seq_len_q, self.seq_len_k),
            )
        )
        return f"{self.batch} x {heads} x {lengths}"

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.seq_len_q, self.heads, self.d_head

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.seq_len_k, self.heads_kv, self.d_head

    @property
    def group_size(self) -> int:
        """The number of heads of q that share a head of k."""
        return max(self.heads // max(self.heads_kv, 1), 1)

    @property
    def is_grouped(self) -> bool:
        """Whether several heads of q share a head of k."""
        return self.heads > self.heads_kv

    @property
    def is_square(self) -> bool:
        """Whether k is shaped as q."""
        return self.q_shape == self.k_shape

    @property
    def n_scores(self) -> int:
        """The number of elements of q k^T over all heads, before any mask."""
        return self.batch * self.heads * self.seq_len_q * self.seq_len_k

    @property
    def bytes(self) -> int:
        """The bytes of q, k, v and o, each counted once."""
        rows = self.seq_len_q * self.heads + self.seq_len_k * self.heads_kv
        return self.batch * rows * (self.d_head + self.d_v) * ELEMENT_BYTES

    @property
    def d_widest(self) -> int:
        """The elements of the longer rows, for which a kernel needs room."""
        return max(self.d_head, self.d_v)

    @property
    def n_rows(self) -> int:
        """The rows of o over all heads: the work that a grid shares out."""
        return self.batch * self.heads * self.seq_len_q

    def bucket(self, num_sms: int) -> Bucket:
        """Returns the bucket of this problem on a GPU with this number of SMs."""
        fill = self.n_rows / num_sms
        return Bucket(_bucket_of(self.seq_len_k, LENGTH_BUCKETS), _bucket_of(fill, FILL_BUCKETS))
