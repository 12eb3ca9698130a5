"""A problem with a variant: the unit of measuring, tuning and choosing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from flashsmith.configs.variant import FULL, VARIANTS, Variant
from flashsmith.dtype import DType
from flashsmith.problem import FILL_BUCKETS, Bucket, Problem

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

# The kernels' head dimensions; other rows are padded to the next larger one.
D_HEADS = (64, 96, 128, 192, 256)
_CHUNK = 8  # elements: rows are moved 16 bytes at a time

# The columns of CSV files and tables, with the sizes of q.
ROW_COLUMNS = ("dtype", "d_head", "mask", "batch", "heads", "seq_len")
# The sizes of k; a row without them, or with empty ones, has q's.
K_COLUMNS = ("heads_kv", "seq_len_k")
_FLAGS = ("fp8_cache", "per_token_scale", "in_boxes")  # of decode
_YES, _NO = "yes", "no"


def flag_text(flag: bool) -> str:
    return _YES if flag else _NO


def read_flag(row: Mapping[str, str | int], name: str) -> bool:
    """Reads a flag. Raises ValueError: The column has a value that ``flag_text`` does not write."""
    if row[name] not in (_YES, _NO):
        raise ValueError(f"{name} is {row[name]!r}; expected {_YES} or {_NO}")
    return row[name] == _YES


class WorkTiles(str, Enum):
    """A class of numbers of work tiles of decode, beside a GPU's SMs; ANY: the choice must not
    depend on it."""

    ANY = "any"
    FEW = "few"  # many SMs share each
    SOME = "some"
    FILLING = "filling"  # up to one for each SM
    SEVERAL = "several"  # for each SM
    MANY = "many"

    @classmethod
    def read(cls, text: str | int) -> WorkTiles:
        """Raises ValueError: No member has this value."""
        try:
            return cls(text)
        except ValueError:
            supported = ", ".join(each.value for each in cls)
            raise ValueError(f"tiles is {text!r}; supported are {supported}") from None


class DecodeBucket(NamedTuple):
    """The decode workloads, of all lengths, that share an entry of a tuned table for one dtype,
    d_head and kind of cache."""

    rows: int
    tiles: WorkTiles
    in_boxes: bool

    @property
    def words(self) -> str:
        """The bucket in words: `up to 16 rows, few tiles`."""
        boxes = ", in boxes" if self.in_boxes else ""
        return f"up to {self.rows} rows, {self.tiles.value} tiles{boxes}"

    @property
    def lengths(self) -> str:
        return self.words

    def in_order_of_similarity(self) -> list[DecodeBucket]:
        return [self]


class TuningKey(NamedTuple):
    """The key of an entry in a tuned table.

    variant: What decides the best configuration beside sizes: a mask, or a kind of cache.
    """

    dtype: DType
    d_head: int
    variant: str
    bucket: Bucket | DecodeBucket

    @property
    def kind(self) -> tuple[int, str]:
        """The key of a portfolio, which all dtypes and sizes share."""
        return self.d_head, self.variant

    @property
    def words(self) -> str:
        return f"{self.dtype} d {self.d_head} {self.variant}, {self.bucket.words}"


class AnyWorkload(Protocol):
    """The interface of workloads, for which an operation chooses kernels and has table entries."""

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
    """Raises ValueError for rows of q or v that no kernel has room for, or that are not whole
    chunks."""
    for name, size in (("q has d_head", d_head), ("v has d_v", d_v)):
        if size % _CHUNK or not 0 < size <= D_HEADS[-1]:
            raise ValueError(
                f"{name} {size}; supported are multiples of {_CHUNK} up to {D_HEADS[-1]}"
            )


def padded_d_head(problem: Problem) -> int:
    """Returns the kernels' d_head for a problem. Raises as ``d_head_of_rows`` does."""
    return d_head_of_rows(problem.d_head, problem.d_v)


def d_head_of_rows(d_head: int, d_v: int) -> int:
    """Returns the kernels' d_head for rows of q and v.

    Raises:
        ValueError: No kernel supports them; the message names the row that is too long or not a
            multiple of 8 elements.
    """
    check_row_sizes(d_head, d_v)
    return next(each for each in D_HEADS if each >= max(d_head, d_v))


@dataclass(frozen=True, order=True)
class DecodeWorkload:
    """A workload of decode.

    dtype: The type of q.
    d_head: The kernels' d_head.
    rows: Packed GQA rows: queries times the heads that share a head of the cache.
    fp8_cache: Whether keys and values are FP8.
    per_token_scale: Whether each row of keys and values has a scale (per-token scales).
    tiles: How many work tiles there are, whatever the lengths are.
    in_boxes: Whether bulk copies can load blocks of keys: 16-bit keys, in pages of a multiple of 16
        rows or in slots, with strides that tensor maps support; and all rows of a block may be
        read, which a window forbids.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "dtype",
        "d_head",
        "rows",
        "tiles",
        *_FLAGS,
    )  # of a row of a tuned table

    dtype: DType
    d_head: int
    rows: int = 1
    fp8_cache: bool = False
    per_token_scale: bool = False
    tiles: WorkTiles = WorkTiles.ANY
    in_boxes: bool = False

    def __str__(self) -> str:
        """Returns a line like `BF16 d 128 fp8, up to 16 rows, few tiles`."""
        key = self.tuning_key()
        kind = f" {key.variant}" if self.fp8_cache else ""
        return f"{self.dtype} d {self.d_head}{kind}, {key.bucket.words}"

    @property
    def variant(self) -> Variant:
        """The variant that represents all variants: they share their choice."""
        return FULL

    @property
    def soaked_variants(self) -> tuple[Variant, ...]:
        """The variants for which kernels must be right to enter a table: an entry serves all
        masks."""
        return VARIANTS

    @property
    def representative(self) -> Self:
        return self

    def tuning_key(self, num_sms: int = 0) -> TuningKey:
        """Returns the key of this workload's entry in a tuned table; its rows must be rounded by
        ``as_tuned``."""
        kind = "16 bits"
        if self.fp8_cache:
            kind = "fp8 with per-token scales" if self.per_token_scale else "fp8"
        bucket = DecodeBucket(self.rows, self.tiles, self.in_boxes)
        return TuningKey(self.dtype, self.d_head, kind, bucket)

    @property
    def measured_at(self) -> str:
        """The meaning of times in a table, in words."""
        return "as the geometric mean over lengths"

    def fills(self, num_sms: int) -> bool:
        """Returns whether the grid reaches the GPU's power limit: decode waits for memory, so it
        does not."""
        return False

    def tflops(self, milliseconds: float) -> None:
        """Returns None: times are means over lengths, which have no single speed."""

    def as_row(self) -> dict[str, str | int]:
        """Returns COLUMNS with their values."""
        flags = {name: flag_text(getattr(self, name)) for name in _FLAGS}
        sizes = {"d_head": self.d_head, "rows": self.rows, "tiles": self.tiles.value}
        return {"dtype": str(self.dtype), **sizes, **flags}

    @classmethod
    def from_row(cls, row: Mapping[str, str | int]) -> Self:
        """Returns the workload of a row, which may have other columns. Raises as
        ``Workload.from_row`` does."""
        flags = {name: read_flag(row, name) for name in _FLAGS}
        dtype = DType.from_string(str(row["dtype"]))
        tiles = WorkTiles.read(row["tiles"])
        return cls(dtype, int(row["d_head"]), int(row["rows"]), tiles=tiles, **flags)


@dataclass(frozen=True, order=True)
class Workload:
    """One problem and one variant: a row of a benchmark or a tuned table."""

    COLUMNS: ClassVar[tuple[str, ...]] = (*ROW_COLUMNS, *K_COLUMNS)  # of a row of a tuned table

    problem: Problem
    variant: Variant = FULL

    @classmethod
    def square(cls, dtype: DType, d_head: int, seq_len: int, variant: Variant = FULL) -> Self:
        """Returns the workload of one head with as many keys as queries."""
        return cls(Problem.square(dtype, d_head, 1, 1, seq_len), variant)

    @property
    def dtype(self) -> DType:
        return self.problem.dtype

    @property
    def d_head(self) -> int:
        """The kernels' d_head for the rows. Raises as ``d_head_of_rows`` does."""
        return padded_d_head(self.problem)

    def __str__(self) -> str:
        """Returns a line like `FP16 d 128 causal 4 x 16 x 4096`."""
        problem = self.problem
        return f"{problem.dtype} d {problem.d_head} {self.variant.name} {problem.sizes}"

    @property
    def representative(self) -> Self:
        """The workload whose choice of a kernel serves this one."""
        return replace(self, problem=self.problem.representative)

    @property
    def kind(self) -> tuple[str, int, str]:
        """The dtype, d_head and mask, which rows of different lengths share."""
        return str(self.problem.dtype), self.problem.d_head, self.variant.name

    def tuning_key(self, num_sms: int) -> TuningKey:
        """Returns the key of this workload's entry in a tuned table, for a GPU's number of SMs."""
        problem, variant = self.problem, self.variant.tuning_key()
        bucket = problem.bucket(num_sms)
        return TuningKey(problem.dtype, padded_d_head(problem), variant, bucket)

    @property
    def soaked_variants(self) -> tuple[Variant, ...]:
        """The variants for which kernels must be right to enter a table: entries distinguish
        masks."""
        return (self.variant,)

    @property
    def measured_at(self) -> str:
        """The meaning of times in a table, in words."""
        return f"at {self.problem.sizes} (batch x heads x length)"

    def fills(self, num_sms: int) -> bool:
        """Returns whether the grid fills a GPU with this number of SMs, which then reaches its
        power limit."""
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
        """The FLOP a byte of DRAM traffic, if q, k, v and o are moved once."""
        return self.flop / self.problem.bytes

    def tflops(self, milliseconds: float) -> float:
        return self.flop / milliseconds / 1e9

    def as_row(self) -> dict[str, str | int]:
        """Returns COLUMNS with their values."""
        problem = self.problem
        of_q = problem.batch, problem.heads, problem.seq_len_q
        of_k = problem.heads_kv, problem.seq_len_k
        return dict(zip(Workload.COLUMNS, (*self.kind, *of_q, *of_k), strict=True))

    @classmethod
    def from_row(cls, row: Mapping[str, str | int]) -> Self:
        """Returns the workload of a row, which may have other columns.

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
    """One problem and one variant, whose gradients are computed.

    deterministic: Whether gradients must have the same bits in every run.
    unlike: Whether sequences have unlike lengths; those of the problem are the longest ones. Tables
        have no such workloads.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (*Workload.COLUMNS, "deterministic")

    deterministic: bool = False
    unlike: bool = False

    def __str__(self) -> str:
        return super().__str__() + (" deterministic" if self.deterministic else "")

    def tuning_key(self, num_sms: int) -> TuningKey:
        key = super().tuning_key(num_sms)
        kind = f"{key.variant} deterministic" if self.deterministic else key.variant
        return key._replace(variant=kind)

    @property
    def flop(self) -> int:
        """The FLOP of five products, where the forward has two."""
        return super().flop * 5 // 2

    def as_row(self) -> dict[str, str | int]:
        return {**super().as_row(), "deterministic": flag_text(self.deterministic)}

    @classmethod
    def from_row(cls, row: Mapping[str, str | int]) -> Self:
        return replace(super().from_row(row), deterministic=read_flag(row, "deterministic"))
