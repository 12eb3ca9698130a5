"""A problem with what is computed of it: what is measured, tuned and chosen for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from flashsmith.configs.variant import FULL, Variant
from flashsmith.dtype import DType
from flashsmith.problem import Bucket, Problem

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

# The head dimensions that kernels have; rows of others are padded to the next.
D_HEADS = (64, 96, 128, 192, 256)
_CHUNK = 8  # elements: rows are moved 16 bytes at a time

# Of CSV files and tables, with sizes of q.
ROW_COLUMNS = ("dtype", "d_head", "mask", "batch", "heads", "seq_len")
# Sizes of k: a row that lacks them, or leaves them empty, has those of q.
K_COLUMNS = ("heads_kv", "seq_len_k")


class TuningKey(NamedTuple):
    """What an entry of a tuned table is for."""

    dtype: DType
    d_head: int
    variant: str  # its tuning_key()
    bucket: Bucket

    @property
    def words(self) -> str:
        return f"{self.dtype} d {self.d_head} {self.variant}, {self.bucket.words}"


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
    """The kernels' d_head that rows of q and v take.

    Raises:
        ValueError: None does; names the row that is too long or no multiple of 8 elements.
    """
    check_row_sizes(d_head, d_v)
    return next(each for each in D_HEADS if each >= max(d_head, d_v))


@dataclass(frozen=True)
class DecodeWorkload:
    """What decode's kernels are chosen for.

    dtype: Of q.
    d_head: One of kernels.
    rows: Queries times the heads that share one of the cache.
    fp8_cache: Whether keys and values have 8 bits.
    token_scales: Whether each row of these has a scale of its own.
    many_tiles: Whether multiprocessors have several work tiles each, whatever the lengths are.
    in_boxes: Whether bulk copies bring blocks of keys: of 16 bits, of pages of a multiple of 16
        rows or of entries, by strides that copies step by; and all rows of blocks may be read,
        which a window forbids.
    """

    dtype: DType
    d_head: int
    rows: int = 1
    fp8_cache: bool = False
    token_scales: bool = False
    many_tiles: bool = False
    in_boxes: bool = False

    @property
    def variant(self) -> Variant:
        """What kernels of all variants share their choice with."""
        return FULL


@dataclass(frozen=True, order=True)
class Workload:
    """One problem and one variant, as a row of a benchmark or a tuned table has them."""

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

    def tuning_key(self, multiprocessors: int) -> TuningKey:
        """What shares this shares an entry of a tuned table, of a GPU of so many."""
        problem, variant = self.problem, self.variant.tuning_key()
        bucket = problem.bucket(multiprocessors)
        return TuningKey(problem.dtype, padded_d_head(problem), variant, bucket)

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
        """ROW_COLUMNS and K_COLUMNS with their values."""
        problem = self.problem
        of_q = problem.batch, problem.heads, problem.seq_len_q
        of_k = problem.heads_kv, problem.seq_len_k
        columns = (*ROW_COLUMNS, *K_COLUMNS)
        return dict(zip(columns, (*self.kind, *of_q, *of_k), strict=True))

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

    deterministic: bool = False


AnyWorkload: TypeAlias = Workload | DecodeWorkload  # what kernels are chosen for
