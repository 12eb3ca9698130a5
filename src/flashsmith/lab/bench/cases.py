"""The cases of a benchmark: which problem of which operation, and who is measured on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from flashsmith.configs import FULL, DType, Variant, Workload
from flashsmith.problem import Problem

# Lengths of packed sequences as they come: their longest holds half of the tokens.
SKEWED = (8192, 4096, 2048, 2048, 1024, 1024, 512, 512, 256, 256, 128, 128, 96, 64, 33, 17)
_TINY_LENGTH, _TINY_CONTEXT, _TINY_WINDOW = 128, 256, 16  # what the emulator does in no time


@dataclass(frozen=True)
class Case:
    """One problem, on which candidates are measured beside each other.

    Attributes:
        operation: One of ``BENCHES``.
        workload: Of decode the queries are q's rows, and the context k's.
        candidates: Names of the operation's own and of its peers, or of kernels.
        name: What rows call it where they have no sizes.
        group: Cases that belong together.
        lengths: Of sequences that are packed; none: they are all as long.
        window: How many keys a query sees; 0: all that the mask leaves.
        score: What is done to scores: one of ``SCORES``.
        cache: How the keys of decode lie: one of ``cache_names``.
        strided: Whether rows of q, k and v lie apart in memory.
    """

    operation: str
    workload: Workload
    candidates: tuple[str, ...]
    name: str = ""
    group: str = ""
    lengths: tuple[int, ...] = ()
    window: int = 0
    score: str = "plain"
    cache: str = ""
    strided: bool = False

    def __str__(self) -> str:
        """`backward: BF16 d 64 causal 4 x 16 x 4096, score_gradients, softcap`."""
        packed, window = "packed" * bool(self.lengths), f"window {self.window}" * bool(self.window)
        score = self.score if self.score != "plain" else ""
        words = [str(self.workload), self.group, packed, window, score, self.cache]
        words += ["strided"] * self.strided
        return f"{self.operation}: {', '.join(filter(None, words))}"

    def tiny(self) -> Case:
        """Returns the same with sizes for the emulator."""
        problem = self.workload.problem
        heads_kv = min(problem.heads_kv, 2)
        heads = heads_kv * min(problem.heads // problem.heads_kv, 2)
        n_q = min(problem.seq_len_q, _TINY_LENGTH)
        n_k = n_q if problem.seq_len_q == problem.seq_len_k else _TINY_CONTEXT
        lengths = tuple(sorted(self.lengths)[:3])
        batch = min(problem.batch, 2)
        if lengths:
            batch, n_q, n_k = len(lengths), max(lengths), max(lengths)
        problem = Problem(problem.dtype, problem.d_head, batch, heads, heads_kv, n_q, n_k)
        workload = replace(self.workload, problem=problem)
        window = min(self.window, _TINY_WINDOW)
        return replace(self, workload=workload, lengths=lengths, window=window)


def workload_of(
    d_head: int,
    batch: int,
    heads: int | tuple[int, int],
    lengths: int | tuple[int, int],
    variant: Variant = FULL,
    dtype: DType = DType.BF16,
) -> Workload:
    """heads, lengths: Of q and of k, where they are not as many."""
    (n_heads, heads_kv), (n_q, n_k) = (
        (size, size) if isinstance(size, int) else size for size in (heads, lengths)
    )
    return Workload(Problem(dtype, d_head, batch, n_heads, heads_kv, n_q, n_k), variant)


def chosen(cases: Iterable[Case], pattern: str) -> list[Case]:
    """Those that have the pattern somewhere in their words, whatever its letters' case is.

    Raises ValueError: None has.
    """
    cases = list(cases)
    found = [case for case in cases if fnmatchcase(str(case).lower(), f"*{pattern.lower()}*")]
    if not found:
        raise ValueError(
            f"--cases is {pattern!r}, which no case has; --list --cases '' shows {len(cases)}"
        )
    return found
