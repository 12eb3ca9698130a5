"""What a call is given: the shapes of its tensors and their element type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from flashsmith.dtype import ELEMENT_BYTES, DType

# Which lengths of k share an entry of a tuned table: up to the first, then up to each next one;
# the last has no end.
LENGTH_BUCKETS = (512, 1024, 2048, 4096, 8192, 16384)

_SIZES = 4  # of a tensor: batch, length, heads, d_head


@dataclass(frozen=True, order=True)
class Problem:
    """q and o are (batch, seq_len_q, heads, d_head), k and v (batch, seq_len_k, heads_kv, d_head).

    A size other than d_head may be 0: there is nothing to compute then, which is no error.

    Attributes:
        heads: A multiple of ``heads_kv``: neighbouring heads of q share one of k and v.

    Raises:
        TypeError: A field has the wrong type; names it.
        ValueError: A field has a value that no call can have; names it.
    """

    dtype: DType
    d_head: int
    batch: int
    heads: int
    heads_kv: int
    seq_len_q: int
    seq_len_k: int

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
        if self.heads % self.heads_kv if self.heads_kv else self.heads:
            raise ValueError(f"heads is {self.heads}, no multiple of heads_kv {self.heads_kv}")

    def __str__(self) -> str:
        return f"{self.dtype} d {self.d_head} {self.sizes}"

    @classmethod
    def square(cls, dtype: DType, d_head: int, batch: int, heads: int, seq_len: int) -> Problem:
        """With k shaped as q."""
        return cls(dtype, d_head, batch, heads, heads, seq_len, seq_len)

    @classmethod
    def of_shapes(cls, dtype: DType, q: Sequence[int], k: Sequence[int]) -> Problem:
        """That of tensors with these shapes.

        Raises:
            ValueError: A shape has not 4 dimensions, or they do not fit each other; names it.
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
        return cls(dtype, d_head, batch, heads, heads_kv, seq_len_q, seq_len_k)

    @property
    def sizes(self) -> str:
        """batch x heads x length, `4 x 16 x 4096`; `4 x 16/2 x 1/4096` where k has others."""
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
    def is_square(self) -> bool:
        """Whether k is shaped as q."""
        return self.q_shape == self.k_shape

    @property
    def n_scores(self) -> int:
        """Elements of q k^T, of all heads, whatever a mask leaves of them."""
        return self.batch * self.heads * self.seq_len_q * self.seq_len_k

    @property
    def bytes(self) -> int:
        """Of q, k, v and o, each once."""
        of_q_and_o = 2 * self.seq_len_q * self.heads
        of_k_and_v = 2 * self.seq_len_k * self.heads_kv
        return self.batch * (of_q_and_o + of_k_and_v) * self.d_head * ELEMENT_BYTES

    @property
    def bucket(self) -> int:
        """The last length of k that shares an entry of a tuned table with this one."""
        return next(
            (bucket for bucket in LENGTH_BUCKETS if self.seq_len_k <= bucket), LENGTH_BUCKETS[-1]
        )
