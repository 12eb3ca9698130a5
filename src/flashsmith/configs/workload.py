"""A problem with what is computed of it: what is measured, tuned and chosen for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from flashsmith.configs.variant import FULL, VARIANTS, Variant
from flashsmith.dtype import DType
from flashsmith.problem import FILL_BUCKETS, Bucket, Problem

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

# The head dimensions that kernels have; rows of others are padded to the next.
D_HEADS = (64, 96, 128, 192, 256)
_CHUNK = 8  # elements: rows are moved 16 bytes at a time

# Of CSV files and tables, with sizes of q.
ROW_COLUMNS = ("dtype", "d_head", "mask", "batch", "heads", "seq_len")
# Sizes of k: a row that lacks them, or leaves them empty, has those of q.
K_COLUMNS = ("heads_kv", "seq_len_k")
_FLAGS = ("fp8_cache", "per_token_scale", "many_tiles", "in_boxes")  # of decode
_YES, _NO = "yes", "no"


def flag_text(flag: bool) -> str:
    return _YES if flag else _NO


def read_flag(row: Mapping[str, str | int], name: str) -> bool:
    """Raises ValueError: The column has another value than those of ``flag_text``."""
    if row[name] not in (_YES, _NO):
        raise ValueError(f"{name} is {row[name]!r}; expected {_YES} or {_NO}")
    return row[name] == _YES


class DecodeBucket(NamedTuple):
    """The workloads of decode that share an entry of a tuned table, beside dtype, d_head and kind
    of cache: of all lengths."""

    rows: int
    many_tiles: bool
    in_boxes: bool

    @property
    def words(self) -> str:
        """`up to 16 rows, few tiles`."""
        tiles = "many tiles" if self.many_tiles else "few tiles"
        return f"up to {self.rows} rows, {tiles}{', in boxes' if self.in_boxes else ''}"

    @property
    def lengths(self) -> str:
        return self.words

    def in_order_of_similarity(self) -> list[DecodeBucket]:
        return [self]


class TuningKey(NamedTuple):
    """What an entry of a tuned table is for.

    variant: What else than sizes tells best configurations apart: a mask, or a kind of cache.
    """

    dtype: DType
    d_head: int
    variant: str
    bucket: Bucket | DecodeBucket

    @property
    def kind(self) -> tuple[int, str]:
        """What entries share a portfolio by, whatever their dtype and sizes are."""
        return self.d_head, self.variant

    @property
    def words(self) -> str:
        return f"{self.dtype} d {self.d_head} {self.variant}, {self.bucket.words}"


class AnyWorkload(Protocol):
    """What kernels of some operation are chosen for, and what entries of its tuned tables are
    of."""

    COLUMNS: ClassVar[tuple[str, ...]]

    @property
    def dtype(self) -> DType: ...
    @property
    def d_head(self) -> int: ...
    @property
    def variant(self) -> Variant: ...
    @property
    def soaked_variants(self) -> tuple[Variant, ...]: ...
    @property
    def representative(self) -> Self: ...
    def tuning_key(self, num_sms: int) -> TuningKey: ...
    @property
    def measured_at(self) -> str: ...
    def fills(self, num_sms: int) -> bool: ...
    def tflops(self, milliseconds: float) -> float | None: ...
    def as_row(self) -> dict[str, str | int]: ...
    @classmethod
    def from_row(cls, row: Mapping[str, str | int]) -> Self: ...


def check_row_sizes(d_head: int, d_v: int) -> None:
    """Raises ValueError for rows of q or v that no kernel has room for, or that end in a chunk."""
    for name, size in (("q has d_head", d_head), ("v has d_v", d_v)):
        if size % _CHUNK or not 0 < size <= D_HEADS[-1]:
            raise ValueError(
                f"{name} {size}; supported are multiples of {_CHUNK} up to {D_HEADS[-1]}"
            )


def padded_d_head(problem: Problem) -> int:
    """The kernels' d_head that a problem takes. Raises as ``d_head_of_rows``."""
    return d_head_of_rows(problem.d_head, problem.d_v)


def d_head_of_rows(d_head: int, d_v: int) -> int:
    """Returns the kernels' d_head that rows of q and v take.

    Raises:
        ValueError: None does; names the row that is too long or no multiple of 8 elements.
    """
    check_row_sizes(d_head, d_v)
    return next(each for each in D_HEADS if each >= max(d_head, d_v))


@dataclass(frozen=True, order=True)
class DecodeWorkload:
    """What decode's kernels are chosen for.

    dtype: Of q.
    d_head: One of kernels.
    rows: Queries times the heads that share one of the cache.
    fp8_cache: Whether keys and values have 8 bits.
    per_token_scale: Whether each row of these has a scale of its own.
    many_tiles: Whether SMs have several work tiles each, whatever the lengths are.
    in_boxes: Whether bulk copies bring blocks of keys: of 16 bits, of pages of a multiple of 16
        rows or of entries, by strides that copies step by; and all rows of blocks may be read,
        which a window forbids.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "dtype",
        "d_head",
        "rows",
        *_FLAGS,
    )  # of a row of a tuned table

    dtype: DType
    d_head: int
    rows: int = 1
    fp8_cache: bool = False
    per_token_scale: bool = False
    many_tiles: bool = False
    in_boxes: bool = False

    def __str__(self) -> str:
        """`BF16 d 128 fp8, up to 16 rows, few tiles`."""
        key = self.tuning_key()
        kind = f" {key.variant}" if self.fp8_cache else ""
        return f"{self.dtype} d {self.d_head}{kind}, {key.bucket.words}"

    @property
    def variant(self) -> Variant:
        """What kernels of all variants share their choice with."""
        return FULL

    @property
    def soaked_variants(self) -> tuple[Variant, ...]:
        """What kernels have to be right for to enter a table: its entries serve all masks."""
        return VARIANTS

    @property
    def representative(self) -> Self:
        return self

    def tuning_key(self, num_sms: int = 0) -> TuningKey:
        """Returns what shares this shares an entry of a tuned table; its rows are some that
        tables tell apart (``as_tuned``)."""
        kind = "16 bits"
        if self.fp8_cache:
            kind = "fp8 with per-token scales" if self.per_token_scale else "fp8"
        bucket = DecodeBucket(self.rows, self.many_tiles, self.in_boxes)
        return TuningKey(self.dtype, self.d_head, kind, bucket)

    @property
    def measured_at(self) -> str:
        """What times in a table are of, in words."""
        return "as the geometric mean over lengths"

    def fills(self, num_sms: int) -> bool:
        """Returns whether its grid fills a GPU: decode waits for memory, and meets no limit of
        power."""
        return False

    def tflops(self, milliseconds: float) -> None:
        """There is no one speed: times are means over lengths."""

    def as_row(self) -> dict[str, str | int]:
        """COLUMNS with their values."""
        flags = {name: flag_text(getattr(self, name)) for name in _FLAGS}
        return {"dtype": str(self.dtype), "d_head": self.d_head, "rows": self.rows, **flags}

    @classmethod
    def from_row(cls, row: Mapping[str, str | int]) -> Self:
        """That of a row, which may have other columns. Raises as ``Workload.from_row``."""
        flags = {name: read_flag(row, name) for name in _FLAGS}
        dtype = DType.from_string(str(row["dtype"]))
        return cls(dtype, int(row["d_head"]), int(row["rows"]), **flags)


@dataclass(frozen=True, order=True)
class Workload:
    """One problem and one variant, as a row of a benchmark or a tuned table has them."""

    COLUMNS: ClassVar[tuple[str, ...]] = (*ROW_COLUMNS, *K_COLUMNS)  # of a row of a tuned table

    problem: Problem
    variant: Variant = FULL

    @classmethod
    def square(cls, dtype: DType, d_head: int, seq_len: int, variant: Variant = FULL) -> Self:
        """Of one head, with as many keys as queries."""
        return cls(Problem.square(dtype, d_head, 1, 1, seq_len), variant)

    @property
    def dtype(self) -> DType:
        return self.problem.dtype

    @property
    def d_head(self) -> int:
        """The kernels' d_head that the rows take. Raises as ``d_head_of_rows``."""
        return padded_d_head(self.problem)

    def __str__(self) -> str:
        """`FP16 d 128 causal 4 x 16 x 4096`."""
        problem = self.problem
        return f"{problem.dtype} d {problem.d_head} {self.variant.name} {problem.sizes}"

    @property
    def representative(self) -> Self:
        """The workload for which the kernel of this one is chosen."""
        return replace(self, problem=self.problem.representative)

    @property
    def kind(self) -> tuple[str, int, str]:
        """dtype, d_head and mask: what rows of different lengths have in common."""
        return str(self.problem.dtype), self.problem.d_head, self.variant.name

    def tuning_key(self, num_sms: int) -> TuningKey:
        """Returns what shares this shares an entry of a tuned table, of a GPU of so many."""
        problem, variant = self.problem, self.variant.tuning_key()
        bucket = problem.bucket(num_sms)
        return TuningKey(problem.dtype, padded_d_head(problem), variant, bucket)

    @property
    def soaked_variants(self) -> tuple[Variant, ...]:
        """What kernels have to be right for to enter a table: its entries tell masks apart."""
        return (self.variant,)

    @property
    def measured_at(self) -> str:
        """What times in a table are of, in words."""
        return f"at {self.problem.sizes} (batch x heads x length)"

    def fills(self, num_sms: int) -> bool:
        """Returns whether its grid fills a GPU of so many, which then meets its limit of power."""
        return self.problem.bucket(num_sms).fill == FILL_BUCKETS[-1]

    @property
    def keys_per_query(self) -> int:
        """About how many keys a query sees."""
        problem = self.problem
        hidden = min(problem.seq_len_q, problem.seq_len_k) // 2 if self.variant.causal else 0
        return problem.seq_len_k - hidden

    @property
    def flop(self) -> int:
        return self.variant.flop(self.problem)

    @property
    def intensity(self) -> float:
        """FLOP for each byte of DRAM traffic, if q, k, v and o are moved once."""
        return self.flop / self.problem.bytes

    def tflops(self, milliseconds: float) -> float:
        return self.flop / milliseconds / 1e9

    def as_row(self) -> dict[str, str | int]:
        """COLUMNS with their values."""
        problem = self.problem
        of_q = problem.batch, problem.heads, problem.seq_len_q
        of_k = problem.heads_kv, problem.seq_len_k
        return dict(zip(Workload.COLUMNS, (*self.kind, *of_q, *of_k), strict=True))

    @classmethod
    def from_row(cls, row: Mapping[str, str | int]) -> Self:
        """That of a row, which may have other columns.

        Raises:
            KeyError: One of ROW_COLUMNS is missing.
            ValueError: A column has a value that it cannot have.
        """
        dtype, variant = DType.from_string(str(row["dtype"])), Variant.from_name(str(row["mask"]))
        d_head, batch, *of_q = (int(row[name]) for name in ("d_head", "batch", "heads", "seq_len"))
        of_k = (row.get(name, "") for name in K_COLUMNS)
        heads_kv, seq_len_k = (
            size if text == "" else int(text) for text, size in zip(of_k, of_q, strict=True)
        )
        heads, seq_len = of_q
        return cls(Problem(dtype, d_head, batch, heads, heads_kv, seq_len, seq_len_k), variant)


@dataclass(frozen=True, order=True)
class BackwardWorkload(Workload):
    """One problem and one variant, whose gradients are wanted.

    deterministic: Whether they have to have the same bits at every run.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (*Workload.COLUMNS, "deterministic")

    deterministic: bool = False

    def __str__(self) -> str:
        return super().__str__() + (" deterministic" if self.deterministic else "")

    def tuning_key(self, num_sms: int) -> TuningKey:
        key = super().tuning_key(num_sms)
        kind = f"{key.variant} deterministic" if self.deterministic else key.variant
        return key._replace(variant=kind)

    @property
    def flop(self) -> int:
        """Of five products, where the forward has two."""
        return super().flop * 5 // 2

    def as_row(self) -> dict[str, str | int]:
        return {**super().as_row(), "deterministic": flag_text(self.deterministic)}

    @classmethod
    def from_row(cls, row: Mapping[str, str | int]) -> Self:
        return replace(super().from_row(row), deterministic=read_flag(row, "deterministic"))
