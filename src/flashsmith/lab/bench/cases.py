"""The cases of a benchmark: a problem of an operation, and the candidates that are measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from flashsmith.configs import FULL, DType, Variant, Workload
from flashsmith.problem import Problem

# Skewed lengths of packed sequences: the longest one has 8192 of the 20434 tokens.
SKEWED = (8192, 4096, 2048, 2048, 1024, 1024, 512, 512, 256, 256, 128, 128, 96, 64, 33, 17)
_TINY_LENGTH, _TINY_CONTEXT, _TINY_WINDOW = 128, 256, 16  # of cases for the emulator


@dataclass(frozen=True)
class Case:
    """One problem, on which candidates are measured beside each other.

    Attributes:
        operation: One of ``BENCHES``.
        workload: For decode, seq_len_q counts the queries and seq_len_k the context's keys.
        candidates: Names of the operation's own candidates, of its peers, or of kernels.
        name: The case's name in rows that have no sizes.
        group: The name of the group of cases that it belongs to.
        lengths: The lengths of packed sequences; empty: all have the problem's length.
        window: The number of keys that a query sees; 0: all keys that the mask leaves.
        score: What modifies the scores: one of ``SCORES``.
        cache: The layout of decode's KV cache: one of ``cache_names``.
        strided: Whether rows of q, k and v have gaps between them in memory.
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
        """Returns words: `backward: BF16 d 64 causal 4 x 16 x 4096, score_gradients, softcap`."""
        packed, window = "packed" * bool(self.lengths), f"window {self.window}" * bool(self.window)
        score = self.score if self.score != "plain" else ""
        words = [str(self.workload), self.group, packed, window, score, self.cache]
        words += ["strided"] * self.strided
        return f"{self.operation}: {', '.join(filter(None, words))}"

    def tiny(self) -> Case:
        """Returns the same case with sizes that suit the emulator."""
        problem = self.workload.problem
        heads_kv = min(problem.heads_kv, 2)
        heads = heads_kv * min(problem.group_size, 2)
        n_q = min(problem.seq_len_q, _TINY_LENGTH)
        n_k = n_q if problem.seq_len_q == problem.seq_len_k else _TINY_CONTEXT
        lengths = tuple(sorted(map(_tiny_length, sorted(self.lengths)[:3])))
        batch = min(problem.batch, 2)
        if lengths:
            batch, n_q, n_k = len(lengths), max(lengths), max(lengths)
        problem = Problem(problem.dtype, problem.d_head, batch, heads, heads_kv, n_q, n_k)
        workload = replace(self.workload, problem=problem)
        window = min(self.window, _TINY_WINDOW)
        return replace(self, workload=workload, lengths=lengths, window=window)


def _tiny_length(n: int) -> int:
    """Returns a length for the emulator, which has an incomplete tile wherever ``n`` has one."""
    half = _TINY_LENGTH // 2
    return n if n <= _TINY_LENGTH else half + n % half


def workload_of(
    d_head: int,
    batch: int,
    heads: int | tuple[int, int],
    lengths: int | tuple[int, int],
    variant: Variant = FULL,
    dtype: DType = DType.BF16,
) -> Workload:
    """Returns a workload.

    heads, lengths: One number, or a pair where q and k differ.
    """
    (n_heads, heads_kv), (n_q, n_k) = (
        (size, size) if isinstance(size, int) else size for size in (heads, lengths)
    )
    return Workload(Problem(dtype, d_head, batch, n_heads, heads_kv, n_q, n_k), variant)


def chosen(cases: Iterable[Case], pattern: str) -> list[Case]:
    """Returns the cases whose words contain the pattern; upper and lower case are equal.

    Raises:
        ValueError: No case contains it.
    """
    cases = list(cases)
    found = [case for case in cases if fnmatchcase(str(case).lower(), f"*{pattern.lower()}*")]
    if not found:
        raise ValueError(
            f"--cases is {pattern!r}, which no case has; --list --cases '' shows {len(cases)}"
        )
    return found
