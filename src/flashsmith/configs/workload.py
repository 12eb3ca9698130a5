"""A problem with what is computed of it: what is measured, tuned and chosen for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashsmith.configs.variant import FULL, Variant
from flashsmith.dtype import DType
from flashsmith.problem import Problem

TuningKey = tuple[DType, int, str, int]  # dtype, d_head, the variant's, length bucket

# Of CSV files and tables: k is shaped as q there.
ROW_COLUMNS = ("dtype", "d_head", "mask", "batch", "heads", "seq_len")


@dataclass(frozen=True, order=True)
class Workload:
    """One problem and one variant, as a row of a benchmark or a tuned table has them."""

    problem: Problem
    variant: Variant = FULL

    def __str__(self) -> str:
        """`FP16 d 128 causal 4 x 16 x 4096`."""
        problem = self.problem
        return f"{problem.dtype} d {problem.d_head} {self.variant.name} {problem.sizes}"

    @property
    def kind(self) -> tuple[str, int, str]:
        """dtype, d_head and mask: what rows of different lengths have in common."""
        return str(self.problem.dtype), self.problem.d_head, self.variant.name

    @property
    def tuning_key(self) -> TuningKey:
        """What shares this shares an entry of a tuned table."""
        problem = self.problem
        return problem.dtype, problem.d_head, self.variant.tuning_key(), problem.bucket

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
        """ROW_COLUMNS with their values.

        Raises:
            ValueError: k is not shaped as q, for which there are no columns.
        """
        problem = self.problem
        if not problem.is_square:
            raise ValueError(f"{self}: a row has no columns for k of another shape than q")
        sizes = problem.batch, problem.heads, problem.seq_len_q
        return dict(zip(ROW_COLUMNS, (*self.kind, *sizes), strict=True))

    @classmethod
    def from_row(cls, row: Mapping[str, str | int]) -> Workload:
        """That of a row, which may have other columns.

        Raises:
            KeyError: A column is missing.
            ValueError: A column has a value that it cannot have.
        """
        dtype, variant = DType.from_string(str(row["dtype"])), Variant.from_name(str(row["mask"]))
        sizes = (int(row[name]) for name in ("d_head", "batch", "heads", "seq_len"))
        return cls(Problem.square(dtype, *sizes), variant)
