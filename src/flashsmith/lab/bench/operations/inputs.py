"""The tensors of attention and its gradients, dense or packed, and the truth of some heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch

from flashsmith.lab.bench.cases import Case
from flashsmith.lab.bench.operations.base import Given
from flashsmith.lab.bench.operations.scores import score_arguments
from flashsmith.reference import Packing, Semantics, reference_attention, reference_gradients
from flashsmith.reference.packing import PackedSequence

TOLERANCE = 0.02  # of the largest element: all candidates round alike
_EVERYWHERE = slice(None)


class Inputs(Given):
    """The inputs of a forward, and the gradient of its output.

    Attributes:
        semantics: The keywords of ``attention`` that say what is computed.
        packing: The keywords of ``attention`` that say where packed sequences begin.
    """

    tolerance = TOLERANCE

    def __init__(self, case: Case, device: str, *, gradients: bool = False, products: float = 1.0):
        """Draws the tensors.

        Args:
            gradients: Whether the result is the gradients of q, k and v.
            products: The FLOP of the operation, relative to a forward.
        """
        self.case, self.gradients = case, gradients
        problem = case.workload.problem
        dtype = problem.dtype.to_torch_dtype()
        shapes: list[tuple[int, ...]] = [problem.q_shape, problem.k_shape]
        if case.lengths:
            shapes = [(sum(case.lengths), *shape[2:]) for shape in shapes]
        d, times = problem.d_head, 3 if case.strided else 1
        self.q, self.k, self.v, self.do = (
            torch.randn(*shape[:-1], times * d, device=device, dtype=dtype)[..., -d:]
            for shape in (shapes[0], shapes[1], shapes[1], shapes[0])
        )
        self.semantics: dict[str, Any] = {"causal": case.workload.variant.causal}
        self.semantics |= score_arguments(case.score, problem, device)
        if case.window:
            self.semantics["window_size"] = (case.window - 1, 0)
        self.offsets = torch.tensor([0, *case.lengths], device=device).cumsum(0).int()
        self.packing: dict[str, Any] = {}
        if case.lengths:
            self.packing = {f"cu_seqlens_{of}": self.offsets for of in "qk"}
            self.packing |= {f"max_seqlen_{of}": max(case.lengths) for of in "qk"}
        self.flop = products * flop_of(case)

    @property
    def qkv(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.q, self.k, self.v

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of ``attention``."""
        return self.semantics | self.packing

    @property
    def is_plain(self) -> bool:
        """Whether the case has dense tensors, no window and plain scores."""
        return not (self.packing or self.case.window or self.case.score != "plain")

    @cached_property
    def _truth(self) -> list[tuple[_Part, tuple[torch.Tensor, ...]]]:
        return [(part, tuple(part.expected(self))) for part in _parts(self)]

    def error_of(self, result: Any) -> float:
        """Returns the largest difference from the truth, relative to its part's largest element."""
        found = result if isinstance(result, tuple) else (result,)
        errors = [
            (own.float() - right).abs().max() / right.abs().max()
            for part, expected in self._truth
            for own, right in zip(part.of(found), expected, strict=True)
        ]
        return torch.stack(errors).max().item()


@dataclass(frozen=True)
class _Part:
    """The query heads of one sequence that share a head of k and v."""

    sequence: PackedSequence
    heads: slice  # of q
    head: slice  # of k

    def of(self, tensors: tuple[torch.Tensor, ...]) -> Iterator[torch.Tensor]:
        """Yields the part of each tensor; the first has q's layout, the others have k's."""
        for i, t in enumerate(tensors):
            if i == 0:
                yield self.sequence.of_q(t)[:, :, self.heads]
            else:
                yield self.sequence.of_k(t)[:, :, self.head]

    def expected(self, given: Inputs) -> Iterator[torch.Tensor]:
        qkv: Any = tuple(self.of(given.qkv))
        semantics = self.sequence.semantics.part(_EVERYWHERE, self.heads)
        keywords = semantics.keywords | {"compute": torch.float32}
        if not given.gradients:
            yield reference_attention(*qkv, **keywords)
            return
        found = reference_gradients(*qkv, *self.of((given.do,)), **keywords)
        yield from (found.q, found.k, found.v)


def _parts(given: Inputs) -> Iterator[_Part]:
    """Yields the parts of the first and the last KV head, for all packed sequences, or for the
    first and the last sample of dense tensors."""
    offsets = {name: t for name, t in given.packing.items() if name.startswith("cu_")}
    sequences = list(Packing(**offsets).sequences(given.q, given.k, Semantics(**given.semantics)))
    if not given.packing:
        sequences = list({id(each): each for each in (sequences[0], sequences[-1])}.values())
    heads_kv = given.k.shape[-2]
    sharing = given.q.shape[-2] // heads_kv
    for sequence, head in product(sequences, sorted({0, heads_kv - 1})):
        heads = slice(head * sharing, (head + 1) * sharing)
        yield _Part(sequence, heads, slice(head, head + 1))


def flop_of(case: Case) -> float:
    """Returns the FLOP of a forward, for the scores that its masks leave."""
    problem, causal = case.workload.problem, case.workload.variant.causal
    of_a_score = 4 * problem.d_head * problem.heads
    if case.lengths:
        return of_a_score * sum(n * (n + 1) / 2 if causal else n * n for n in case.lengths)
    if case.window:
        hidden = case.window * (case.window - 1) / 2
        return of_a_score * problem.batch * (problem.seq_len_q * case.window - hidden)
    return case.workload.flop
