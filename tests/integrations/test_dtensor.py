"""DTensors: which shards are computed in place, and that results equal those of one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

import flashsmith
from support.sharded import CASES, PLACES, Outcomes, outcomes_of_two

# These cases cannot be computed by parts of the batch or of the heads, so their shards are
# gathered.
GATHERED = {
    ("heads that are not shared evenly", "heads"), ("packed", "batch"), ("dropout", "batch"),
    ("dropout", "heads"), ("appended to pages", "batch"),
}  # fmt: skip
# The rows of a KV cache cannot be gathered if the call writes to it.
REFUSED = {(case, "rows") for case in ("appended", "out")}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return outcomes_of_two(tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize(("case", "place"), CASES)
def test_two_processes_compute_what_one_does(outcomes: Outcomes, case: str, place: str) -> None:
    differences, found = outcomes[case, place]
    if (case, place) in REFUSED:
        assert "these are written where they are" in found and "expected shards of the" in found
        return
    assert len(differences) >= 1 and all(each < 4e-3 for each in differences.values()), differences
    expected: Placement = Replicate()
    if place in ("batch", "heads") and (case, place) not in GATHERED:
        expected = Shard(1) if (case, place) == ("packed", "heads") else PLACES[place]
    assert found == str(expected)


# ---- meshes of more dimensions, with fake processes ----


@pytest.fixture
def meshes() -> Iterator[Any]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield lambda *sizes: dist.device_mesh.init_device_mesh("cpu", sizes)
    dist.destroy_process_group()


def sharded(mesh: Any, placements: Any, *shape: int) -> DTensor:
    local = list(shape)
    for size, placement in zip(mesh.shape, placements, strict=True):
        if isinstance(placement, Shard):
            local[placement.dim] = -(-local[placement.dim] // size)
    return DTensor.from_local(
        torch.randn(local).half(), mesh, placements, shape=torch.Size(shape),
        stride=torch.empty(shape).stride(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "heads_kv", "keeps_heads"),
    [
        ((2, 4), 8, True),  # each rank has one KV head
        ((4, 2), 24, True),
        ((2, 4), 4, False),  # a fourth of q's heads, but half of k's
        ((2, 4), 12, False),  # ranks get 2, 2, 2 and none of 6
        ((2, 4), 16, True),
    ],
)
def test_heads_on_two_dimensions_of_a_mesh(
    meshes: Any, sizes: tuple[int, int], heads_kv: int, keeps_heads: bool
) -> None:
    placements = [Shard(2), Shard(2)]
    mesh = meshes(*sizes)
    q = sharded(mesh, placements, 2, 3, 2 * heads_kv, 16)
    k = sharded(mesh, placements, 2, 3, heads_kv, 16) if heads_kv >= 8 else sharded(
        mesh, [Shard(2), Replicate()], 2, 3, heads_kv, 16
    )  # fmt: skip
    o = flashsmith.attention(q, k, k)
    assert (list(o.placements) == placements) == keeps_heads
    assert o.shape == q.shape


def test_batch_and_heads_together(meshes: Any) -> None:
    mesh = meshes(2, 4)
    for placements in itertools.permutations([Shard(0), Shard(2)]):
        q, k = (sharded(mesh, placements, 4, 3, heads, 16) for heads in (8, 4))
        alone = flashsmith.attention(q, k, k, causal=True)
        # The second call also returns the LSE, because torch caches calls by their arguments.
        o, lse = flashsmith.attention(q, k, k, causal=True, return_lse=True)
        assert alone.placements == o.placements == tuple(placements)
        assert lse.placements == tuple(Shard(min(p.dim, 1)) for p in placements)
        assert lse.shape == (4, 8, 3)


def test_a_compiled_graph(meshes: Any) -> None:
    """Torch learns how the operator is sharded while it traces the graph, at the latest."""
    attend = torch.compile(flashsmith.attention, fullgraph=True, backend="aot_eager")
    q = sharded(meshes(8), [Shard(2)], 2, 3, 8, 16).requires_grad_()
    o = attend(q, q, q, causal=True)
    assert o.placements == (Shard(2),)
    (dq,) = torch.autograd.grad(o.sum(), q)
    assert dq.placements == (Shard(2),)


def test_tensors_that_are_not_distributed_are_refused_by_torch(meshes: Any) -> None:
    mesh = meshes(8)
    q = sharded(mesh, [Shard(0)], 8, 3, 4, 16)
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        flashsmith.attention(q, q, q, alibi_slopes=torch.rand(4))
